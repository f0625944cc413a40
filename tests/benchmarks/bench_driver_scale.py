"""What of the driver's work grows, and with what: `python -m tests.benchmarks driver-scale`.

Processor time of the engine's thread, on an executor that does nothing: a step with 256 and with
4,000 sequences, short and long contexts mixed; a token with 1, 2 and 8 steps in flight that share
1,000 sequences, as pipeline stages do, and with 8 stages that run ahead; and a preemption in a full
cache.

Targets: 5 µs per sequence and step at 256 sequences, 6 at 4,000; at depth 8 at most twice what a
token costs at depth 1, since a step is of an eighth of the sequences.
"""

import argparse
import json
import time

import numpy as np

from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.core.llm_engine import LLMEngine
from engine.core.parts import Parts
from engine.executor import Capacity
from engine.frontend.garbage import COLLECTOR
from engine.sampling_params import SamplingParams
from engine.text.tokenizer import Tokenizer
from tests.benchmarks.bench_driver import DEMO, NoOpExecutor
from tests.engine.support.arrivals import add_request

LENGTHS = (*[40] * 14, 100, 2000)
ROOMY = Capacity(num_gpu_blocks=400_000, num_cpu_blocks=0)


def running_engine(executor: NoOpExecutor, num_sequences: int, lengths: tuple[int, ...] = LENGTHS) -> LLMEngine:
    """With so many sequences, which all decode."""
    config = EngineConfig.create(
        model=DEMO, max_num_seqs=num_sequences, max_num_batched_tokens=max(8192, 2 * num_sequences), max_model_len=4096
    )
    model = ModelConfig.load(DEMO).model_copy(update={"max_position_embeddings": 4096})
    engine = LLMEngine(Parts(config, model, Tokenizer(DEMO), executor))
    engine.start()
    params = SamplingParams(temperature=0.7, max_tokens=2000, ignore_eos=True)
    for number in range(num_sequences):
        length = lengths[number % len(lengths)]
        add_request(engine, str(number), [50 + number % 300, *[7 + number // 300] * (length - 1)], params)
    return engine


def decoding_engine(executor: NoOpExecutor, num_sequences: int, lengths: tuple[int, ...] = LENGTHS) -> LLMEngine:
    engine = running_engine(executor, num_sequences, lengths)
    while engine.stats().num_requests_waiting:
        engine.step()
    for _ in range(16 * executor.depth):
        engine.step()
    return engine


def measure_steps(executor: NoOpExecutor, num_sequences: int, num_steps: int) -> float:
    """Microseconds of a token, collections of garbage included."""
    COLLECTOR.slow_down()  # as the engine's thread does
    engine = decoding_engine(executor, num_sequences)
    taken = []
    for _ in range(num_steps):
        started = time.thread_time()
        outputs = engine.step()
        engine.stats()  # as the engine's thread does in each turn
        taken.append((time.thread_time() - started) / max(len(outputs), 1))
    COLLECTOR.set_back()
    return 1e6 * float(np.mean(taken))


def measure_preemption(num_sequences: int, num_steps: int, *, swaps: bool) -> dict[str, float]:
    """Microseconds that making room takes: a preemption, and a step with any."""
    COLLECTOR.slow_down()
    num_blocks = 7 * num_sequences  # a few more than the prompts take
    capacity = Capacity(num_blocks, num_blocks if swaps else 0, 0.0 if swaps else float("inf"))
    engine = running_engine(NoOpExecutor(capacity), num_sequences, tuple(range(64, 128)))
    taken: list[float] = []
    make_room = engine.scheduler.preemption.make_room

    def timed(*arguments: object) -> bool:
        started = time.thread_time()
        try:
            return make_room(*arguments)  # type: ignore[arg-type]
        finally:
            taken.append(time.thread_time() - started)

    engine.scheduler.preemption.make_room = timed  # type: ignore[method-assign]
    while not taken:
        engine.step()
    steps_with_some = 1
    for _ in range(num_steps):
        num_calls = len(taken)
        engine.step()
        steps_with_some += len(taken) > num_calls
    stats = engine.stats()
    num = stats.num_preemptions_swap + stats.num_preemptions_recompute
    COLLECTOR.set_back()
    return {"preemptions": num, "us": 1e6 * sum(taken) / num, "us a step": 1e6 * sum(taken) / steps_with_some}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    result: dict[str, object] = {}

    def show(name: str, value: object) -> None:
        result[name] = value
        print(f"{name:<48} {value if isinstance(value, dict) else f'{value:.2f} us a token'}", flush=True)

    for num_sequences in (256, 4000):
        for swaps in (True, False):
            name = f"{num_sequences} sequences, preempted by {'swap' if swaps else 'recompute'}"
            show(name, measure_preemption(num_sequences, arguments.steps, swaps=swaps))
    for num_sequences in (256, 4000):
        show(f"{num_sequences} sequences", measure_steps(NoOpExecutor(ROOMY), num_sequences, arguments.steps))
    for depth in (1, 2, 8):
        executor = NoOpExecutor(ROOMY, depth=depth, runs_ahead=False)
        show(f"1000 sequences, depth {depth}", measure_steps(executor, 1000, arguments.steps * depth))
    ahead = NoOpExecutor(ROOMY, depth=9, runs_ahead=True)
    show("1000 sequences, 8 stages ahead", measure_steps(ahead, 1000, arguments.steps * 9))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
