"""What structured output costs: a batch whose answers each have a schema of their own, against the
same batch without.

    python -m tests.benchmarks.bench_structured [--model qwen2.5-0.5b] [--rows 64] [--steps 40]

Both in turn, on one engine with one rank in this process; prints the median of each round's ratios:
of tokens a second, and of tokens a second of processor time, which other processes change little.
Goal: 0.95. The tokenizer is the demo's, so masks are as wide as the model's vocabulary, but little
of it is walked. With `--vocabulary FILE`, one that `bench_grammars --train FILE` has made, it is as
large as Qwen's.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Encoder

from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.core.llm_engine import LLMEngine
from engine.core.parts import Parts
from engine.sampling_params import SamplingParams
from engine.text.tokenizer import Tokenizer
from engine.worker.local_executor import LocalExecutor
from tests.benchmarks.bench_grammars import token_bytes
from tests.benchmarks.folders import SHAPE, cached_folder
from tests.engine.support.arrivals import add_request

PROMPT = list(range(1, 33))


def schema(number: int) -> dict[str, Any]:
    """One that never ends, and is like no other."""
    person = {
        "type": "object",
        "properties": {
            f"name_{number}": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "role": {"enum": ["admin", "editor", "reader", f"role {number}"]},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        },
        "required": [f"name_{number}", "age", "role", "tags"],
        "additionalProperties": False,
    }
    return {"type": "array", "items": person, "minItems": 1_000}


def rate(engine: LLMEngine, num_rows: int, num_steps: int, *, structured: bool) -> dict[str, float]:
    """Tokens a second of decoding, the same of processor time, and milliseconds of this thread, the
    driver's, a step.
    """
    for row in range(num_rows):
        form = {"structured_outputs": {"json": schema(row)}} if structured else {}
        params = SamplingParams(temperature=1.0, seed=row, ignore_eos=True, max_tokens=num_steps + 2, **form)
        add_request(engine, f"r{row}", PROMPT, params)
    waiting = {f"r{row}" for row in range(num_rows)}
    while waiting:  # prompts, and everybody's first token
        waiting -= {output.request_id for output in engine.step()}
    started, cpu_started, driver_started = time.perf_counter(), time.process_time(), time.thread_time()
    tokens = 0
    while engine.has_unfinished_requests():
        tokens += sum(len(choice.token_ids) for output in engine.step() for choice in output.outputs)
    driver = time.thread_time() - driver_started
    cpu, seconds = time.process_time() - cpu_started, time.perf_counter() - started
    return {"rate": tokens / seconds, "of cpu": tokens / cpu, "driver ms": 1e3 * driver / num_steps}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=SHAPE)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocabulary", type=Path, help="a tokenizer.json of 151,643 tokens")
    asked = parser.parse_args()
    folder = cached_folder(asked.model)
    config = EngineConfig.create(model=folder, kv_cache_memory_bytes=2**29, max_num_seqs=asked.rows, max_model_len=512)
    executor = LocalExecutor(config)
    tokenizer = Tokenizer(folder)
    if asked.vocabulary is not None:
        tokenizer.token_bytes = token_bytes(Encoder.from_file(str(asked.vocabulary)))
    engine = LLMEngine(Parts(config, ModelConfig.load(folder), tokenizer, executor))
    engine.start()
    try:
        rounds = []
        for number in range(asked.rounds + 1):  # the first is to warm up
            names = ("plain", "schema") if number % 2 else ("schema", "plain")  # who is first, differs
            of = {name: rate(engine, asked.rows, asked.steps, structured=name == "schema") for name in names}
            if number:
                rounds.append(of)
        ratios = {
            name: round(statistics.median(of["schema"][name] / of["plain"][name] for of in rounds), 3)
            for name in ("rate", "of cpu")
        }
        print(json.dumps({"model": asked.model, "rows": asked.rows, "ratio": ratios, "rounds": rounds}))
    finally:
        executor.shutdown()


if __name__ == "__main__":
    main()
