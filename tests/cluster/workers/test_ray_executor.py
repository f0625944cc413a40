"""Workers as Ray actors: the same tokens as one rank in process, whatever becomes of them; and
where they are placed.
"""

import itertools
import logging
import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
import ray
from ray.util.placement_group import placement_group_table

from cluster.workers.processes.actor import Loaded, Seat, WorkerActor
from cluster.workers.ray_executor import RayExecutor
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.core.llm_engine import LLMEngine
from engine.core.parts import Parts
from engine.errors import REQUEST_QUARANTINED, InvalidConfig, StepRaised
from engine.executor import Executor
from engine.outputs import RequestOutput, SamplerOutput
from engine.sampling_params import SamplingParams
from engine.step import ExecuteModelRequest, LateMasks
from engine.worker.local_executor import LocalExecutor
from tests.cluster.workers.ranks import PROMPTS, SECONDS, is_alive, make_config, run, started
from tests.engine.support.demo import Request, answers, tokens_and_text
from tests.engine.support.workloads import TOKENIZER
from tests.engine.worker.steps import Part, ints, make_step, pairs
from tests.listeners import listeners_of

pytestmark = pytest.mark.usefixtures("cluster")
DEADLY = 13  # a token id


def test_two_stages_of_two_ranks_from_start_to_end(expected: list[list[int]], caplog: pytest.LogCaptureFixture) -> None:
    executor = RayExecutor(make_config(tensor_parallel_size=2, pipeline_parallel_size=2, num_spare_workers=0))
    with caplog.at_level(logging.INFO, "squadron.executor"):
        capacity = executor.start()
    assert (executor.depth, executor.runs_ahead) == (3, True)
    assert capacity.num_gpu_blocks == 32
    reports = [message for message in caplog.messages if message.startswith("worker ")]
    assert [report.split(",")[0] for report in reports] == [f"worker {rank}" for rank in range(4)]
    assert ["layers 0-1" in report for report in reports] == [True, True, False, False]
    assert run(executor) == expected
    output = executor.submit(make_step(99, [Part([1], 0, [1])])).result(SECONDS)
    assert (output.execute_ns > 0).tolist() == [True] * 4
    pids = executor.worker_pids
    assert executor.worker_nodes == [ray.get_runtime_context().get_node_id()] * 4
    check_that_an_exception_restarts_no_process(executor, expected)
    executor.shutdown()
    executor.shutdown()
    assert [is_alive(pid) for pid in pids] == [False] * 4
    assert executor.worker_pids == executor.worker_nodes == []
    assert {group["state"] for group in placement_group_table().values()} == {"REMOVED"}


def test_a_rank_alone_opens_no_store() -> None:
    with (
        started(make_config(num_spare_workers=0)) as one,
        started(make_config(tensor_parallel_size=2, num_spare_workers=0)) as two,
    ):
        alone, first, second = (len(listeners_of(pid)) for pid in (*one.worker_pids, *two.worker_pids))
    assert alone == second == first - 1  # of which the rest are Ray's


def check_that_an_exception_restarts_no_process(executor: RayExecutor, expected: list[list[int]]) -> None:
    pids = executor.worker_pids
    for epoch in range(3):
        bad = make_step(epoch, [Part([1], 0, [1])], epoch=epoch, carried_steps=ints(100), carried_rows=pairs((0, 0)))
        with pytest.raises(
            StepRaised, match=rf"step {epoch} raised on worker [01]: ValueError: step {epoch} carries rows of step 100"
        ):
            executor.submit(bad).result(SECONDS)
        executor.restart()
        assert run(executor, epoch=epoch + 1) == expected
    assert executor.worker_pids == pids


@contextmanager
def engine_on(executor: Executor, config: EngineConfig) -> Iterator[LLMEngine]:
    engine = LLMEngine(Parts(config, ModelConfig.load(config.model), TOKENIZER, executor))
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
        {"seed": 5, "structured_outputs": {"regex": "([a-z]{2,5} ){30,}"}},
    ]
    params = {"max_tokens": 40, "ignore_eos": True, "logit_bias": {DEADLY: -100.0}}
    return [
        (
            [rng.randrange(20, 200) for _ in range(rng.randint(3, 60))],
            SamplingParams(**params, **kinds[index % len(kinds)]),
        )
        for index in range(count)
    ]


def test_streams_go_on_with_the_tokens_they_would_have_had() -> None:
    exact = {"ops_backend": "cpu", "num_gpu_blocks_override": 200}
    config = make_config(**exact, tensor_parallel_size=2, pipeline_parallel_size=2)
    with engine_on(LocalExecutor(make_config(**exact)), config) as engine:
        expected = [tokens_and_text(answer) for answer in answers(engine, requests(12))]
    executor = RayExecutor(config)
    with engine_on(executor, config) as engine:
        step, num_steps, signals = engine.step, itertools.count(), {8: signal.SIGKILL, 40: signal.SIGSTOP}

        def step_with_faults() -> list[RequestOutput]:
            number = next(num_steps)
            if number in signals:
                os.kill(executor.worker_pids[number % 4], signals[number])
            return step()

        engine.step = step_with_faults  # type: ignore[method-assign]
        assert [tokens_and_text(answer) for answer in answers(engine, requests(12))] == expected
        assert engine.stats().num_recoveries == 2


def test_stages_that_are_lost_with_steps_ahead_of_the_driver() -> None:
    """The last, which has drawn tokens that the first waits for, and one between them."""
    exact = {"ops_backend": "cpu", "num_gpu_blocks_override": 200}
    config = make_config(**exact, pipeline_parallel_size=4)
    with engine_on(LocalExecutor(make_config(**exact)), config) as engine:
        expected = [tokens_and_text(answer) for answer in answers(engine, requests(3))]
    executor = RayExecutor(config)
    with engine_on(executor, config) as engine:
        submit, is_ahead, lost = executor.submit, [], iter((3, 1))

        def submit_with_faults(request: ExecuteModelRequest) -> Future[SamplerOutput]:
            """Each time when a few steps have begun with tokens of the ones before."""
            future = submit(request)
            is_ahead.append(bool(len(request.carried_rows)))
            if sum(is_ahead) == 12 and (rank := next(lost, None)) is not None:
                is_ahead.clear()
                os.kill(executor.worker_pids[rank], signal.SIGKILL)
            return future

        executor.submit = submit_with_faults  # type: ignore[method-assign]
        assert [tokens_and_text(answer) for answer in answers(engine, requests(3))] == expected
        assert engine.stats().num_recoveries == 2


class DeadlyWorker:
    """A worker that dies of a token."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def execute(self, request: ExecuteModelRequest, late_masks: LateMasks) -> SamplerOutput | None:
        if DEADLY in request.input_ids:
            os._exit(1)
        output: SamplerOutput | None = self._worker.execute(request, late_masks)
        return output


class DeadlyActor(WorkerActor):
    def take_seat(self, config: EngineConfig, seat: Seat) -> Loaded:
        loaded = super().take_seat(config, seat)
        if seat.rank == 1 and not isinstance(self._worker, DeadlyWorker):
            self._worker = DeadlyWorker(self._worker)
        return loaded


def test_what_kills_its_worker_is_quarantined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.workers.processes.started.WorkerActor", DeadlyActor)
    config = make_config(num_gpu_blocks_override=200, tensor_parallel_size=2, num_spare_workers=0)
    with engine_on(LocalExecutor(make_config(num_gpu_blocks_override=200)), config) as engine:
        expected = [tokens_and_text(answer) for answer in answers(engine, requests(8))]
    with engine_on(RayExecutor(config), config) as engine:
        told = answers(engine, [*requests(8), ([3, 4, DEADLY], SamplingParams())])
        assert [tokens_and_text(answer) for answer in told[:-1]] == expected
        assert told[-1].error_code == REQUEST_QUARANTINED
        assert engine.stats().num_recoveries == 2


def test_tensor_parallel_ranks_run_ahead_and_fail_with_a_reason() -> None:
    with started(make_config(tensor_parallel_size=2, num_spare_workers=0)) as executor:
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
            executor.submit(make_step(8, [unknown], carried_steps=ints(3), carried_rows=pairs((0, 0)))).result(SECONDS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ops_backend": "triton"}, "triton"),
    ],
)
def test_start_refuses_in_a_sentence(changes: dict[str, object], message: str) -> None:
    executor = RayExecutor(make_config(**changes))
    with pytest.raises(InvalidConfig, match=message) as caught:
        executor.start()
    assert "Traceback" not in str(caught.value)
    assert executor.worker_pids == []
