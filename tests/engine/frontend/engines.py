"""Engines with a thread on the history executor, and callers of theirs."""

from engine.config import EngineConfig
from engine.executor import Capacity
from engine.frontend.async_engine import AsyncEngine
from engine.outputs import Accumulator
from engine.request import Request
from engine.sampling_params import SamplingParams
from tests.doubles.history_executor import HistoryExecutor
from tests.engine.support.workloads import DEMO, MODEL

PARAMS = SamplingParams(max_tokens=20, seed=1, ignore_eos=True)


def make(**overrides):
    executor = HistoryExecutor(Capacity(500, 0), MODEL.vocab_size, depth=2, runs_ahead=True)
    return AsyncEngine(
        EngineConfig.create(**{"model": DEMO, "max_num_seqs": 8, "max_num_queued_reqs": 0, **overrides}), executor
    )


async def collect(engine, request_id, prompt, params=PARAMS):
    total = Accumulator()
    async for output in engine.generate(Request(request_id, prompt, params)):
        assert output.request_id == request_id
        total.add(output)
    return total.last


async def idle(engine):
    while engine.observer.stats().num_free_gpu_blocks < engine.observer.stats().num_gpu_blocks:
        await engine.observer.steps_after(-1, 1)  # an answer of the engine's thread: at least a turn has passed
