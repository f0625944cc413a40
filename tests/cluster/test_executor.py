"""Workers as Ray actors: the same tokens as one rank in process, and what becomes of a group that loses one."""

import logging
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.executor import RayExecutor
from cluster.placement import Placement, locate, make_bundles, place
from engine.config import EngineConfig
from engine.errors import InvalidConfig, WorkerLost
from engine.executor import Executor
from engine.worker.local_executor import LocalExecutor
from tests.engine.worker.steps import Part, generate, ints, make_step, pairs

ROOT = Path(__file__).parents[2]
PROMPTS = [list(range(40, 77)), [5, 6, 7], list(range(300, 316))]
SECONDS = 60  # more than any step takes


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
        old_pids = executor.worker_pids
        caplog.clear()
        os.kill(old_pids[0], signal.SIGSTOP)  # so that the step is in flight for as long as it takes to kill the worker
        future = executor.submit(make_step(0, [Part(PROMPTS[0], 0, [1, 2, 3])]))
        os.kill(old_pids[0], signal.SIGKILL)
        for failed in (future, executor.submit(make_step(1, [Part([1], 0, [1])]))):
            with pytest.raises(WorkerLost) as caught:
                failed.result(SECONDS)
            assert caught.value.rank == 0
            assert "its process ended" in caught.value.reason or "ActorDiedError" in caught.value.reason
        (line,) = caplog.messages
        assert re.match(r"worker 0 on node \S+ lost, step 0 in flight: ", line)
        assert executor.restart().num_gpu_blocks == 32
        assert not set(old_pids) & set(executor.worker_pids)
        assert not any(is_alive(pid) for pid in old_pids)
        with pytest.raises(WorkerLost, match="of epoch 0, and this is epoch 1"):
            executor.submit(make_step(2, [Part([1], 0, [1])])).result(SECONDS)
        assert run(executor, epoch=1) == expected


def test_tensor_parallel_ranks_run_ahead_and_fail_with_a_reason() -> None:
    with started(make_config(tensor_parallel_size=2)) as executor:
        assert (executor.depth, executor.runs_ahead) == (2, True)
        first = executor.submit(make_step(0, [Part(PROMPTS[0], 0, [1, 2, 3])]))
        unknown = Part([*PROMPTS[0], 0], len(PROMPTS[0]), [1, 2, 3])
        ahead = executor.submit(make_step(1, [unknown], carried_rows=pairs((0, 0))))
        token = int(first.result(SECONDS).token_ids[0])
        known = executor.submit(make_step(2, [unknown], input_ids=ints(token)))
        assert ahead.result(SECONDS).token_ids.tolist() == known.result(SECONDS).token_ids.tolist()
        with pytest.raises(WorkerLost, match=r"worker [01] lost: ValueError: step 8 carries rows of step 3"):
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


def test_a_group_that_is_not_ours_stays_while_it_waits_for_room() -> None:
    group = placement_group([{"CPU": 6.0}])
    replicas = Placement(group, is_own=False, num_cpus=3.0, num_gpus=0, bundles=[0, 0])
    with pytest.raises(InvalidConfig, match=r"no room for \[\{'CPU': 6.0\}\]"):
        locate(replicas, timeout=1)
    assert placement_group_table(group)["state"] == "PENDING"
    remove_placement_group(group)


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
