"""How much the driver does in a step: calls of functions. Of their time, see
`python -m tests.benchmarks driver` and `driver-scale`.
"""

import pytest

from engine.executor import Capacity
from tests.benchmarks.bench_deltas import text_engine
from tests.benchmarks.bench_driver import NoOpExecutor
from tests.benchmarks.bench_driver_scale import decoding_engine
from tests.calls import counted

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
