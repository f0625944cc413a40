"""How long a stream waits for its next token while others' prompts are computed, and how long these
take, with and without a limit (`max_decode_wait_ms`).

    python -m tests.benchmarks.bench_decode_wait [--model demo] [--streams N] [--prompts N]

In turn, on two engines with one rank in this process each. A round is some streams, and prompts
that arrive together once they have begun; prints the longest gap between the first one's tokens,
the median of a round's, and prompt tokens a second.
"""

import argparse
import json
import statistics
import time
from contextlib import ExitStack

from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.core.llm_engine import LLMEngine
from engine.core.parts import Parts
from engine.sampling_params import SamplingParams
from engine.text.tokenizer import Tokenizer
from engine.worker.local_executor import LocalExecutor
from tests.benchmarks.folders import SHAPE, cached_folder
from tests.engine.support.arrivals import add_request

LIMITS_MS = (0.0, 200.0)
MAX_STREAM_TOKENS = 2000  # more than it has steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=SHAPE)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--input-len", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    folder = cached_folder(asked.model)
    with ExitStack() as stack:
        engines = {limit: _engine(folder, limit, stack) for limit in LIMITS_MS}
        for number in range(asked.rounds + 1):  # the first is to warm up
            for limit, engine in engines.items():
                gaps, seconds = waits(engine, number, asked.streams, asked.prompts, asked.input_len)
                told = {
                    "max_decode_wait_ms": limit,
                    "longest_ms": round(1000 * max(gaps)),
                    "median_ms": round(1000 * statistics.median(gaps)),
                    "prompt_tok_per_s": round(asked.prompts * asked.input_len / seconds),
                }
                if number:
                    print(json.dumps(told), flush=True)


def waits(
    engine: LLMEngine, number: int, num_streams: int, num_prompts: int, input_len: int
) -> tuple[list[float], float]:
    """Seconds between a stream's tokens until the prompts are computed, and seconds in all."""
    for stream in range(num_streams):
        ids = [number + 1, stream + 7]
        add_request(engine, f"stream {stream}", ids, SamplingParams(max_tokens=MAX_STREAM_TOKENS, ignore_eos=True))
    begun: set[str] = set()
    while len(begun) < num_streams:
        begun |= {output.request_id for output in engine.step()}
    for prompt in range(num_prompts):
        ids = [(number * 31 + prompt * 7 + place * place) % 500 + 1 for place in range(input_len)]
        add_request(engine, f"prompt {prompt}", ids, SamplingParams(max_tokens=1))
    gaps: list[float] = []
    started = before = time.perf_counter()
    left = num_prompts
    while left:
        for output in engine.step():
            now = time.perf_counter()
            if output.request_id == "stream 0":
                gaps.append(now - before)
                before = now
            elif output.request_id.startswith("prompt"):
                left -= output.finished
    seconds = time.perf_counter() - started
    for stream in range(num_streams):
        engine.abort_request(f"stream {stream}")
    while engine.has_unfinished_requests():
        engine.step()
    return gaps, seconds


def _engine(folder: str, limit: float, stack: ExitStack) -> LLMEngine:
    config = EngineConfig.create(
        model=folder,
        kv_cache_memory_bytes=2**30,
        enable_prefix_caching=False,
        max_decode_wait_ms=limit,
    )
    executor = LocalExecutor(config)
    stack.callback(executor.shutdown)
    engine = LLMEngine(Parts(config, ModelConfig.load(folder), Tokenizer(folder), executor))
    engine.start()
    return engine


if __name__ == "__main__":
    main()
