"""What the driver costs: schedule + build + process per running sequence and step, on an executor
that does nothing.

    python -m tests.benchmarks.bench_driver [--sequences 256] [--steps 400] [--waiting 100000]

Prints the time of a step by part. Target: at most 5 µs per running sequence and step at 256
sequences. The same, and the bytes that a step sends to each rank, with one context of 131,072
tokens among them: no other sequence is to pay for it. The same for 16 sequences with 100,000
allowed_token_ids each. And the driver's own time from a lost worker to the next step, with many
more requests waiting. Target: at most 0.2 s with 100,000.
"""

import argparse
import json
import time
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from cluster.workers.steps.messages import encode
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.core.llm_engine import LLMEngine
from engine.core.parts import Parts
from engine.errors import WorkerLost
from engine.executor import Capacity
from engine.frontend.garbage import COLLECTOR
from engine.outputs import SamplerOutput
from engine.sampling_params import SamplingParams
from engine.step import ExecuteModelRequest
from engine.text.tokenizer import Tokenizer
from tests.engine.support.arrivals import add_request

DEMO = str(Path(__file__).parents[2] / "configs" / "demo")
LONG = 131_072
CAPACITY = Capacity(num_gpu_blocks=40_000, num_cpu_blocks=0)
VOCAB_SIZE, NUM_ALLOWED, NUM_CHOOSY = 151_936, 100_000, 16


class NoOpExecutor:
    """Answers every step at once with the same token."""

    def __init__(self, capacity: Capacity = CAPACITY, *, depth: int = 2, runs_ahead: bool = True) -> None:
        self.depth, self.runs_ahead = depth, runs_ahead
        self._capacity = capacity
        self.is_broken = False  # the next step ends in the loss of a worker
        self.last: ExecuteModelRequest | None = None

    def start(self) -> Capacity:
        return self._capacity

    def submit(self, request: ExecuteModelRequest) -> Future[SamplerOutput]:
        self.last = request
        num_rows = len(request.sampled_rows)
        future: Future[SamplerOutput] = Future()
        if self.is_broken:
            future.set_exception(WorkerLost(0, "lost on purpose", request.step))
            return future
        nothing = np.zeros((num_rows, 0), np.float32)
        future.set_result(
            SamplerOutput(
                epoch=request.epoch,
                step=request.step,
                token_ids=np.full(num_rows, 40, np.int32),
                is_finite=np.ones(num_rows, np.bool_),
                logprobs=np.zeros(0, np.float32),
                ranks=np.zeros(0, np.int32),
                top_ids=nothing.astype(np.int32),
                top_logprobs=nothing,
                execute_ns=np.zeros(1, np.int64),
            )
        )
        return future

    def restart(self) -> Capacity:
        self.is_broken = False
        return self.start()

    def was_killed(self, failure: WorkerLost) -> bool:
        return True

    def shutdown(self) -> None:
        pass


def running_engine(num_sequences: int, num_steps: int, longest: int = 0, num_allowed: int = 0) -> LLMEngine:
    """With so many sequences, which decode for as many steps at least; one of them is of `longest`
    tokens, and each names so many allowed_token_ids, if any are given.
    """
    config = EngineConfig.create(
        model=DEMO, max_num_seqs=num_sequences, max_num_batched_tokens=max(2048, num_sequences)
    )
    model = ModelConfig.load(DEMO)
    if longest:
        model = model.model_copy(update={"max_position_embeddings": longest + num_steps + 128})
    if num_allowed:
        model = model.model_copy(update={"vocab_size": VOCAB_SIZE})
    engine = LLMEngine(Parts(config, model, Tokenizer(DEMO), NoOpExecutor()))
    engine.start()
    params = SamplingParams(
        temperature=0.7, max_tokens=num_steps + 64, ignore_eos=True, allowed_token_ids=range(num_allowed) or None
    )
    if longest:
        add_request(engine, "long", [7] * longest, params)
        while engine.stats().num_generation_tokens == 0:
            engine.step()
    for number in range(num_sequences - bool(longest)):
        add_request(engine, str(number), [50 + number % 300] * 100, params)
    while engine.stats().num_requests_waiting:
        engine.step()
    for _ in range(16):
        engine.step()
    return engine


def measure(num_sequences: int, num_steps: int, longest: int = 0, num_allowed: int = 0) -> dict[str, float]:
    """Seconds a step, medians: whole, and by part as the engine's own clocks have it; and what it
    sends to a rank.
    """
    COLLECTOR.slow_down()  # as the engine's thread does
    engine = running_engine(num_sequences, num_steps, longest, num_allowed)
    before = engine.stats()
    times = []
    for _ in range(num_steps):
        started = time.perf_counter()
        outputs = engine.step()
        engine.stats()  # as the engine's thread does in each turn
        times.append(time.perf_counter() - started)
        assert len(outputs) == num_sequences
    COLLECTOR.set_back()
    after = engine.stats()
    parts = {
        name: (getattr(after, name) - getattr(before, name)) / num_steps
        for name in ("schedule_seconds", "build_seconds", "process_seconds")
    }
    return {"step_seconds": float(np.median(times)), **parts, "frame_bytes": len(encode(engine.executor.last))}


def measure_recovery(num_sequences: int, num_waiting: int) -> float:
    """Seconds from the loss of a worker to the next step's being handed over; the executor takes
    none of them.
    """
    COLLECTOR.slow_down()
    engine = running_engine(num_sequences, 64)
    for number in range(num_waiting):
        add_request(engine, f"waiting {number}", [50 + number % 300] * 100, SamplingParams(max_tokens=16))
    engine.executor.is_broken = True
    num_recoveries = engine.stats().num_recoveries
    started = time.perf_counter()
    while engine.stats().num_recoveries == num_recoveries:
        started = time.perf_counter()
        engine.step()
    engine.step()
    seconds = time.perf_counter() - started
    COLLECTOR.set_back()
    return seconds


def show(result: dict[str, float], num_sequences: int) -> None:
    for name, value in result.items():
        if name == "frame_bytes":
            print(f"{name:<18} {value:8,.0f}")
        else:
            print(f"{name:<18} {value * 1e6:8.0f} us   {value * 1e6 / num_sequences:6.2f} us per sequence")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--waiting", type=int, default=100_000)
    arguments = parser.parse_args()
    result = measure(arguments.sequences, arguments.steps)
    show(result, arguments.sequences)
    print(f"\nwith one context of {LONG:,} tokens:")
    result["beside_a_long_context"] = measure(arguments.sequences, arguments.steps, LONG)
    show(result["beside_a_long_context"], arguments.sequences)
    print(f"\n{NUM_CHOOSY} sequences, of {NUM_ALLOWED:,} allowed tokens each:")
    result["with_allowed_tokens"] = measure(NUM_CHOOSY, arguments.steps, num_allowed=NUM_ALLOWED)
    show(result["with_allowed_tokens"], NUM_CHOOSY)
    result["recovery_seconds"] = measure_recovery(arguments.sequences, arguments.waiting)
    print(f"{'recovery_seconds':<18} {result['recovery_seconds'] * 1e6:8.0f} us   with {arguments.waiting} waiting")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
