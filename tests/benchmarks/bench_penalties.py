"""What penalties and bad words cost: a batch whose requests have one, or 16 words of two tokens
and more, against the same batch without.

    python -m tests.benchmarks.bench_penalties [--model qwen2.5-0.5b] [--rows 64] [--steps 40]

All in turn, on one engine with one rank in this process; prints the median of each round's ratios:
of tokens a second, and of tokens a second of processor time, which other processes change little.
Goal: 0.97. Prompts have `--input-len` tokens and come in chunks, so that requests begin in
different steps. Qwen2.5-Instruct's generation_config.json asks for a repetition penalty, so this is
what servers compute by default.
"""

import argparse
import json
import statistics
import time
from typing import Any

from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.core.llm_engine import LLMEngine
from engine.core.parts import Parts
from engine.sampling_params import SamplingParams
from engine.text.tokenizer import Tokenizer
from engine.worker.local_executor import LocalExecutor
from tests.benchmarks.folders import SHAPE, cached_folder
from tests.engine.support.arrivals import add_request

WISHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalty": {"repetition_penalty": 1.1},
    "bad words": {"bad_words": tuple(f"word{number}" for number in range(16))},
}


def rate(engine: LLMEngine, asked: argparse.Namespace, **wishes: Any) -> dict[str, float]:
    """Tokens a second of decoding, the same of processor time, rows a step, and milliseconds of
    this thread, the driver's, a step.
    """
    prompt = [number % 500 + 1 for number in range(asked.input_len)]
    for row in range(asked.rows):
        params = SamplingParams(temperature=1.0, seed=row, ignore_eos=True, max_tokens=asked.steps + 2, **wishes)
        add_request(engine, f"r{row}", [row + 1, *prompt], params)
    waiting = {f"r{row}" for row in range(asked.rows)}
    while waiting:  # prompts, and everybody's first token
        waiting -= {output.request_id for output in engine.step()}
    started, cpu_started, driver_started = time.perf_counter(), time.process_time(), time.thread_time()
    tokens, steps = 0, engine.scheduler.step
    while engine.has_unfinished_requests():
        tokens += sum(len(choice.token_ids) for output in engine.step() for choice in output.outputs)
    driver = time.thread_time() - driver_started
    cpu, seconds = time.process_time() - cpu_started, time.perf_counter() - started
    steps = engine.scheduler.step - steps
    return {
        "rate": tokens / seconds,
        "of cpu": tokens / cpu,
        "rows a step": tokens / steps,
        "driver ms": 1e3 * driver / steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=SHAPE)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    folder = cached_folder(asked.model)
    config = EngineConfig.create(
        model=folder,
        kv_cache_memory_bytes=2**30,
        max_num_seqs=asked.rows,
        max_model_len=asked.input_len + asked.steps + 16,
        max_num_batched_tokens=max(512, asked.rows),
        enable_prefix_caching=False,
    )
    executor = LocalExecutor(config)
    engine = LLMEngine(Parts(config, ModelConfig.load(folder), Tokenizer(folder), executor))
    engine.start()
    try:
        rounds = []
        for number in range(asked.rounds + 1):  # the first is to warm up
            names = sorted(WISHES, reverse=bool(number % 2))  # who is first, differs
            of = {name: rate(engine, asked, **WISHES[name]) for name in names}
            if number:
                rounds.append(of)
        ratios = {
            wish: {
                name: round(statistics.median(of[wish][name] / of["plain"][name] for of in rounds), 3)
                for name in ("rate", "of cpu")
            }
            for wish in WISHES
            if wish != "plain"
        }
        print(json.dumps({"model": asked.model, "rows": asked.rows, "ratio": ratios, "rounds": rounds}))
    finally:
        executor.shutdown()


if __name__ == "__main__":
    main()
