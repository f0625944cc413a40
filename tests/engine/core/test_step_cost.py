"""How much the driver does in a step: calls of functions, or lines where a loop makes no calls. Of
their time, see `python -m tests.benchmarks driver` and `driver-scale`.
"""

import pytest

from engine.core.llm_engine import LLMEngine
from engine.executor import Capacity
from engine.request import Adapter
from engine.sampling_params import SamplingParams
from tests.benchmarks.bench_deltas import text_engine
from tests.benchmarks.bench_driver import NoOpExecutor
from tests.benchmarks.bench_driver_scale import decoding_engine
from tests.calls import counted, counted_lines
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, make_engine

NUM_STEPS = 32  # in which each sequence begins two blocks


def calls_of_a_token(num_sequences: int, length: int) -> float:
    executor = NoOpExecutor(Capacity(num_gpu_blocks=70_000, num_cpu_blocks=0))
    engine = decoding_engine(executor, num_sequences, (length,))
    outputs = []
    with counted() as calls:
        for _ in range(NUM_STEPS):
            outputs.append(len(engine.step()))
            engine.stats()  # as the engine's thread does
    assert outputs == [num_sequences] * NUM_STEPS
    return calls.count / sum(outputs)


@pytest.fixture(scope="module")
def short() -> float:
    return calls_of_a_token(64, 100)


def test_a_token_takes_few_calls(short: float) -> None:
    assert short < 50  # 33, the step's own calls counted in


def test_it_takes_no_more_in_a_long_context(short: float) -> None:
    assert calls_of_a_token(64, 1000) < 1.1 * short


def test_it_takes_no_more_beside_many_sequences(short: float) -> None:
    assert calls_of_a_token(512, 100) < short


def test_a_token_with_text_takes_few_calls() -> None:
    engine = text_engine(64, 2 * NUM_STEPS)
    with counted() as calls:
        outputs = [len(engine.step()) for _ in range(NUM_STEPS)]
    assert calls.count / sum(outputs) < 55  # 37


def engine_of_adapters(num_sequences: int) -> LLMEngine:
    """Three adapters, of which two may run, have a request each in turn: those of the third wait
    at last.
    """
    overrides = {"enable_lora": True, "max_loras": 2, "max_num_seqs": num_sequences}
    engine = make_engine(Knobs(num_blocks=1000, num_cpu_blocks=1000, overrides=overrides))
    for number in range(num_sequences):
        name = "ab"[number % 2] if number < num_sequences - 2 else "c"
        add_request(engine, str(number), [7, 8, 9], SamplingParams(), adapter=Adapter(name, "", 2 * name, 8))
    return engine


def lines_of_admission(num_sequences: int) -> float:
    engine = engine_of_adapters(num_sequences)
    with counted_lines() as lines:
        engine.scheduler.schedule()
    assert len(engine.scheduler.queues.running) == num_sequences - 2
    return lines.count / num_sequences


def test_a_request_with_an_adapter_is_admitted_at_the_same_cost_beside_many() -> None:
    assert lines_of_admission(512) < 1.2 * lines_of_admission(64)


def lines_of_figures(num_sequences: int) -> int:
    engine = engine_of_adapters(num_sequences)
    engine.scheduler.schedule()
    for lane in engine.scheduler.queues.running[: num_sequences // 2]:
        engine.scheduler.queues.swap_out(lane)
    with counted_lines() as lines:
        stats = engine.stats()
    num_out = num_sequences // 2
    assert (stats.num_requests_running, stats.num_requests_swapped) == (num_sequences - 2 - num_out, num_out)
    return lines.count


def test_the_figures_of_a_step_ask_nothing_of_each_request() -> None:
    assert lines_of_figures(512) == lines_of_figures(64)
