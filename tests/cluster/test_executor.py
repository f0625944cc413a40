"""Workers as Ray actors: the same tokens as one rank in process, and what becomes of a group that loses one."""

import itertools
import logging
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private.ray_constants import KV_NAMESPACE_FUNCTION_TABLE
from ray.experimental.internal_kv import _internal_kv_list
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.actor import Loaded, Seat, WorkerActor
from cluster.executor import RayExecutor
from cluster.placement import make_bundles, place
from engine.config import EngineConfig, ModelConfig
from engine.errors import REQUEST_QUARANTINED, InvalidConfig, StepRaised, WorkerLost
from engine.executor import Executor
from engine.llm_engine import LLMEngine
from engine.outputs import RequestOutput, SamplerOutput
from engine.request import ExecuteModelRequest
from engine.sampling_params import SamplingParams
from engine.worker.local_executor import LocalExecutor
from tests.engine.demo import Request, answers, tokens_and_text
from tests.engine.worker.steps import Part, generate, ints, make_step, pairs
from tests.engine.workloads import TOKENIZER

ROOT = Path(__file__).parents[2]
PROMPTS = [list(range(40, 77)), [5, 6, 7], list(range(300, 316))]
SECONDS = 60  # more than any step takes
DEADLY = 13  # a token id
IS_TOLD = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 15)  # by Linux, how a process ended


def make_config(**changes: object) -> EngineConfig:
    arguments = {
        "model": str(ROOT / "configs" / "demo"),
        "device": "cpu",
        "dtype": "float32",
        "ops_backend": "reference",
        "num_gpu_blocks_override": 32,
        "swap_space": 0.01,
    }
    return EngineConfig.create(**(arguments | changes))


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A Ray cluster of this machine, with four logical CPUs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        folder = tempfile.mkdtemp(prefix="sq-", dir="/tmp")  # short: the paths of sockets are
        ray.init(
            address="local",
            num_cpus=4,
            include_dashboard=False,
            object_store_memory=80 << 20,
            runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        yield
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def started(config: EngineConfig) -> Iterator[RayExecutor]:
    executor = RayExecutor(config)
    try:
        executor.start()
        yield executor
    finally:
        executor.shutdown()


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """What one rank in process makes of the prompts."""
    executor = LocalExecutor(make_config())
    executor.start()
    tokens = run(executor)
    executor.shutdown()
    return tokens


def run(executor: Executor, epoch: int = 0) -> list[list[int]]:
    return generate(lambda request: executor.submit(request).result(SECONDS), PROMPTS, 6, epoch=epoch, chunk=20)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def actor_classes() -> set[bytes]:
    """Ray's copies of actor classes, which it keeps until the job ends."""
    return set(_internal_kv_list(b"ActorClass", namespace=KV_NAMESPACE_FUNCTION_TABLE))


def test_two_stages_of_two_ranks(expected: list[list[int]], caplog: pytest.LogCaptureFixture) -> None:
    executor = RayExecutor(make_config(tensor_parallel_size=2, pipeline_parallel_size=2))
    with caplog.at_level(logging.INFO, "squadron.executor"):
        capacity = executor.start()
    assert (executor.depth, executor.runs_ahead) == (2, False)
    assert (capacity.num_gpu_blocks, capacity.max_model_len) == (32, 31 * 16)
    reports = [message for message in caplog.messages if message.startswith("worker ")]
    assert [report.split(",")[0] for report in reports] == [f"worker {rank}" for rank in range(4)]
    assert ["layers 0-1" in report for report in reports] == [True, True, False, False]
    assert run(executor) == expected
    output = executor.submit(make_step(99, [Part([1], 0, [1])])).result(SECONDS)
    assert (output.execute_ns > 0).tolist() == [True] * 4
    pids = executor.worker_pids
    executor.shutdown()
    executor.shutdown()
    assert [is_alive(pid) for pid in pids] == [False] * 4
    assert executor.worker_pids == []
    assert {group["state"] for group in placement_group_table().values()} == {"REMOVED"}


def test_killed_worker_is_lost_and_replaced(expected: list[list[int]], caplog: pytest.LogCaptureFixture) -> None:
    with started(make_config(pipeline_parallel_size=2)) as executor:
        old_pids, old_classes = executor.worker_pids, actor_classes()
        caplog.clear()
        os.kill(old_pids[0], signal.SIGSTOP)  # so that the step is in flight for as long as it takes to kill the worker
        future = executor.submit(make_step(0, [Part(PROMPTS[0], 0, [1, 2, 3])]))
        os.kill(old_pids[0], signal.SIGKILL)
        for failed in (future, executor.submit(make_step(1, [Part([1], 0, [1])]))):
            with pytest.raises(WorkerLost) as caught:
                failed.result(SECONDS)
            assert caught.value.rank == 0
            assert "its process ended" in caught.value.reason or "ActorDiedError" in caught.value.reason
        assert executor.was_killed(caught.value) == IS_TOLD
        (line,) = caplog.messages
        assert re.match(r"worker 0 on node \S+ lost, step 0 in flight: ", line)
        assert executor.restart().num_gpu_blocks == 32
        assert executor.worker_pids[1] == old_pids[1], "the other process is kept, with its weights"
        assert executor.worker_pids[0] != old_pids[0] and not is_alive(old_pids[0])
        with pytest.raises(WorkerLost, match="of epoch 0, and this is epoch 1"):
            executor.submit(make_step(2, [Part([1], 0, [1])])).result(SECONDS)
        assert run(executor, epoch=1) == expected
        assert actor_classes() == old_classes, "a worker more leaves nothing in Ray's store"


def test_a_spare_starts_a_while_after_the_others_and_takes_a_dead_ones_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.executor.STOCK_SECONDS", 0.5)
    with started(make_config(pipeline_parallel_size=2)) as executor:
        assert executor._pool is not None
        assert executor._pool._spares == []
        executor._stocking.join(SECONDS)
        ((_, spare),) = executor._pool._spares
        assert ray.get(spare.introduction, timeout=SECONDS).pid not in executor.worker_pids
        os.kill(executor.worker_pids[1], signal.SIGKILL)
        with pytest.raises(WorkerLost):
            executor.submit(make_step(0, [Part(PROMPTS[0], 0, [1, 2, 3])])).result(SECONDS)
        executor.restart()
        assert executor.worker_pids[1] == spare.facts.pid


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["here", "on another machine"])
def test_a_frozen_worker_is_found_and_replaced(
    expected: list[list[int]], monkeypatch: pytest.MonkeyPatch, is_elsewhere: bool
) -> None:
    """On another machine it is seen by a neighbour: by its silence alone it would be lost after 10 s."""
    if is_elsewhere:
        monkeypatch.setattr("cluster.worker_process._open_pidfd", lambda facts: None)
    with started(make_config(pipeline_parallel_size=2, num_spare_workers=0)) as executor:
        frozen, other = executor.worker_pids
        os.kill(frozen, signal.SIGSTOP)
        with pytest.raises(WorkerLost, match=r"worker 0 lost: stopped by a signal, no sign of life for \d\.\d s"):
            executor.submit(make_step(0, [Part(PROMPTS[0], 0, [1, 2, 3])])).result(SECONDS)
        executor.restart()
        assert not is_alive(frozen) and executor.worker_pids[1] == other
        assert run(executor, epoch=1) == expected


def test_a_frozen_worker_alone_on_another_machine_is_seen_by_a_lookout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.worker_process._open_pidfd", lambda facts: None)
    monkeypatch.setattr("cluster.executor.STOCK_SECONDS", 0.1)
    with started(make_config(num_spare_workers=0)) as executor:
        executor._stocking.join(SECONDS)
        assert executor._pool is not None
        (lookout,) = executor._pool._lookouts.values()
        for thread in executor._pool._warming:
            thread.join(SECONDS)
        assert lookout.is_attached and lookout.facts.pid not in executor.worker_pids
        ended = os.pidfd_open(lookout.facts.pid)
        (frozen,) = executor.worker_pids
        os.kill(frozen, signal.SIGSTOP)
        with pytest.raises(WorkerLost, match=r"worker 0 lost: stopped by a signal, no sign of life for [23]\.\d s"):
            executor.submit(make_step(0, [Part(PROMPTS[0], 0, [1, 2, 3])])).result(SECONDS)
        executor.restart()
        assert not is_alive(frozen) and list(executor._pool._lookouts.values()) == [lookout]
    assert select.select([ended], [], [], SECONDS)[0], "it is still there"
    os.close(ended)


def test_a_starved_worker_and_a_short_pause_are_no_alarm(expected: list[list[int]]) -> None:
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        with started(make_config(pipeline_parallel_size=2, num_spare_workers=0)) as executor:
            starved, paused = executor.worker_pids
            os.setpriority(os.PRIO_PROCESS, starved, 19)
            os.kill(paused, signal.SIGSTOP)
            resume = threading.Timer(1.5, os.kill, (paused, signal.SIGCONT))
            resume.start()
            assert run(executor) == expected
            resume.join()
            assert executor.worker_pids == [starved, paused]
    finally:
        burner.kill()
        burner.wait()


def test_an_exception_restarts_no_process(expected: list[list[int]]) -> None:
    with started(make_config(tensor_parallel_size=2, pipeline_parallel_size=2)) as executor:
        pids = executor.worker_pids
        for epoch in range(3):
            bad = make_step(epoch, [Part([1], 0, [1])], epoch=epoch, carried_step=100, carried_rows=pairs((0, 0)))
            with pytest.raises(StepRaised, match=rf"step {epoch} raised on worker [01]: ValueError: carried rows"):
                executor.submit(bad).result(SECONDS)
            executor.restart()
            assert run(executor, epoch=epoch + 1) == expected
        assert executor.worker_pids == pids


@contextmanager
def engine_on(executor: Executor, config: EngineConfig) -> Iterator[LLMEngine]:
    engine = LLMEngine(config, ModelConfig.load(config.model), TOKENIZER, executor)
    try:
        engine.start()
        yield engine
    finally:
        executor.shutdown()


def requests(count: int) -> list[Request]:
    """Of every kind that has something to lose; none with the deadly token."""
    rng = random.Random(0)
    kinds: list[dict[str, object]] = [
        {"temperature": 0.0},
        {"seed": 1, "logprobs": 2},
        {"seed": 2, "n": 2},
        {"seed": 3, "frequency_penalty": 0.5},
        {"seed": 4, "stop": ["e"]},
    ]
    params = {"max_tokens": 40, "ignore_eos": True, "logit_bias": {DEADLY: -100.0}}
    return [
        ([rng.randrange(20, 200) for _ in range(rng.randint(3, 60))], SamplingParams(**params, **kinds[index % 5]))
        for index in range(count)
    ]


def test_streams_go_on_with_the_tokens_they_would_have_had() -> None:
    exact = {"ops_backend": "cpu", "num_gpu_blocks_override": 200}
    config = make_config(**exact, tensor_parallel_size=2, pipeline_parallel_size=2)
    with engine_on(LocalExecutor(make_config(**exact)), config) as engine:
        expected = [tokens_and_text(answer) for answer in answers(engine, requests(20))]
    executor = RayExecutor(config)
    with engine_on(executor, config) as engine:
        step, num_steps, signals = engine.step, itertools.count(), {8: signal.SIGKILL, 40: signal.SIGSTOP}

        def step_with_faults() -> list[RequestOutput]:
            number = next(num_steps)
            if number in signals:
                os.kill(executor.worker_pids[number % 4], signals[number])
            return step()

        engine.step = step_with_faults  # type: ignore[method-assign]
        assert [tokens_and_text(answer) for answer in answers(engine, requests(20))] == expected
        assert engine.stats().num_recoveries == 2


class DeadlyWorker:
    """A worker that dies of a token."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def execute(self, request: ExecuteModelRequest) -> SamplerOutput | None:
        if DEADLY in request.input_ids:
            os._exit(1)
        output: SamplerOutput | None = self._worker.execute(request)
        return output


class DeadlyActor(WorkerActor):
    def take_seat(self, config: EngineConfig, seat: Seat) -> Loaded:
        loaded = super().take_seat(config, seat)
        if seat.rank == 1 and not isinstance(self._worker, DeadlyWorker):
            self._worker = DeadlyWorker(self._worker)
        return loaded


def test_what_kills_its_worker_is_quarantined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.worker_process.WorkerActor", DeadlyActor)
    config = make_config(num_gpu_blocks_override=200, tensor_parallel_size=2)
    with engine_on(LocalExecutor(make_config(num_gpu_blocks_override=200)), config) as engine:
        expected = [tokens_and_text(answer) for answer in answers(engine, requests(15))]
    with engine_on(RayExecutor(config), config) as engine:
        told = answers(engine, [*requests(15), ([3, 4, DEADLY], SamplingParams())])
        assert [tokens_and_text(answer) for answer in told[:-1]] == expected
        assert told[-1].error_code == REQUEST_QUARANTINED
        assert engine.stats().num_recoveries == 2


def test_tensor_parallel_ranks_run_ahead_and_fail_with_a_reason() -> None:
    with started(make_config(tensor_parallel_size=2)) as executor:
        assert (executor.depth, executor.runs_ahead) == (2, True)
        first = executor.submit(make_step(0, [Part(PROMPTS[0], 0, [1, 2, 3])]))
        unknown = Part([*PROMPTS[0], 0], len(PROMPTS[0]), [1, 2, 3])
        ahead = executor.submit(make_step(1, [unknown], carried_rows=pairs((0, 0))))
        token = int(first.result(SECONDS).token_ids[0])
        known = executor.submit(make_step(2, [unknown], input_ids=ints(token)))
        assert ahead.result(SECONDS).token_ids.tolist() == known.result(SECONDS).token_ids.tolist()
        with pytest.raises(
            StepRaised, match=r"step 8 raised on worker [01]: ValueError: step 8 carries rows of step 3"
        ):
            executor.submit(make_step(8, [unknown], carried_step=3, carried_rows=pairs((0, 0)))).result(SECONDS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ops_backend": "triton"}, "triton"),
        ({"num_gpu_blocks_override": 3, "max_model_len": 100}, "use 32 or less"),
    ],
)
def test_start_refuses_in_a_sentence(changes: dict[str, object], message: str) -> None:
    executor = RayExecutor(make_config(**changes))
    with pytest.raises(InvalidConfig, match=message) as caught:
        executor.start()
    assert "Traceback" not in str(caught.value)
    assert executor.worker_pids == []


def test_no_room_in_the_cluster() -> None:
    with pytest.raises(InvalidConfig, match=r"no room for \[\{'CPU': 6.0\}\]"):
        place(make_config(tensor_parallel_size=2), cpus_per_worker=3.0, timeout=1)


def test_stages_are_bundles_and_a_replica_uses_its_own() -> None:
    config = make_config(tensor_parallel_size=2, pipeline_parallel_size=2)
    options = make_bundles(config)
    assert options["placement_group_bundles"] == [{"CPU": 0.25}, {"CPU": 0.5}, {"CPU": 0.5}]
    group = placement_group(options["placement_group_bundles"], strategy=options["placement_group_strategy"])
    strategy = PlacementGroupSchedulingStrategy(group, 0)

    @ray.remote(num_cpus=0.25, scheduling_strategy=strategy)
    def place_in_replica() -> tuple[bool, list[int], str]:
        placement = place(config)
        return placement.is_own, placement.bundles, placement.group.id.hex()

    assert ray.get(place_in_replica.remote()) == (False, [1, 1, 2, 2], group.id.hex())
    remove_placement_group(group)


def test_a_gpu_for_each_worker() -> None:
    options = make_bundles(make_config(device="cuda", tensor_parallel_size=2, ops_backend="auto"))
    assert options["placement_group_bundles"] == [{"CPU": 0.25}, {"CPU": 0.5, "GPU": 2.0}]


def test_one_rank_in_process_needs_no_bundles() -> None:
    assert make_bundles(make_config()) == {"ray_actor_options": {"num_cpus": 0.25, "num_gpus": 0}}
