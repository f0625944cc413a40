"""What streams gain when an engine that ends hands their blocks over, and what that costs.

    python -m tests.benchmarks.bench_drain [--model qwen2.5-0.5b] [--streams 8] [--rounds 2]

Streams run on one engine; all of them go on at another one, which has had none of it: "computed"
computes their tokens again, "left" is told of a folder in shared memory where the first one has
left their blocks. Both engines are in this process, one after the other. The pause of a stream is
from the moment at which all are handed over to its next token: p50 and the longest, by the clock
and by processor time of all threads, as if the engine had the machine to itself; and the processor
time until all have gone on. What leaving costs the first engine is told apart: processor time
beyond that of as many steps before, and the longest time between two tokens of a stream meanwhile.
"""

import argparse
import json
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np

from cluster.bench.environment import environment
from engine.checkpoint.model_config import ModelConfig
from engine.core.llm_engine import LLMEngine
from engine.offload.shared_folder import SharedFolder, shared_folder
from engine.sampling_params import SamplingParams
from tests.benchmarks.bench_tiers import BLOCK, engine_on
from tests.benchmarks.folders import SHAPE, cached_folder
from tests.engine.support.arrivals import add_request

KINDS = ("computed", "left")
MOST_BLOCKS = 1 << 20
WARM_STEPS = 8  # behind the prompts, with which those are compared in which blocks are stored


class Run:
    """Of one kind; tokens depend on nothing but the workload."""

    def __init__(self, asked: argparse.Namespace, vocab_size: int) -> None:
        random = np.random.default_rng(0)
        self.prompts = random.integers(100, min(vocab_size, 4000), (asked.streams, asked.length)).tolist()
        self.said: list[list[int]] = [[] for _ in self.prompts]
        self.params = SamplingParams(temperature=0.0, max_tokens=asked.tokens + 500, ignore_eos=True)
        self.num_tokens = asked.tokens  # that each has had when its engine ends

    def begin(self, engine: LLMEngine, blocks_at: str | None = None) -> None:
        for number, prompt in enumerate(self.prompts):
            output_ids = [list(self.said[number])] if self.said[number] else []
            add_request(engine, str(number), prompt, self.params, output_ids=output_ids, blocks_at=blocks_at)

    def step(self, engine: LLMEngine) -> tuple[set[int], float, float]:
        """Which streams got tokens, the seconds and those of processor time."""
        began, cpu, served = time.perf_counter(), time.process_time(), set()
        for output in engine.step():
            if output.outputs[0].token_ids:
                self.said[int(output.request_id)] += output.outputs[0].token_ids
                served.add(int(output.request_id))
        return served, time.perf_counter() - began, time.process_time() - cpu

    def until_it_ends(self, engine: LLMEngine) -> float:
        """Processor time of a step then."""
        self.begin(engine)
        while min(map(len, self.said)) < self.num_tokens:
            self.step(engine)
        return float(np.mean([self.step(engine)[2] for _ in range(WARM_STEPS)]))

    def leave(self, engine: LLMEngine, step_seconds: float) -> dict[str, float]:
        stored: Future[None] = Future()
        engine.leave(MOST_BLOCKS, stored)
        steps = []
        while not stored.done():
            steps.append(self.step(engine)[1:])
        cpu = sum(cpu for _, cpu in steps) - len(steps) * step_seconds
        figures = {"stored_blocks": engine.stats().num_blocks_stored, "leaving_steps": len(steps)}
        return figures | {"leaving_cpu_ms": 1000 * cpu, "longest_step_ms": 1000 * max(each for each, _ in steps)}

    def go_on(self, engine: LLMEngine, blocks_at: str | None) -> dict[str, float]:
        began, cpu_began = time.perf_counter(), time.process_time()
        self.begin(engine, blocks_at)
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
        pauses, cpu_pauses = {}, {}
        while len(pauses) < len(self.prompts):
            served, taken, cpu = self.step(engine)
            seconds, cpu_seconds = seconds + taken, cpu_seconds + cpu
            for number in served - pauses.keys():
                pauses[number], cpu_pauses[number] = 1000 * seconds, 1000 * cpu_seconds
        figures = {"cpu_ms": 1000 * cpu_seconds, "again_tokens": float(engine.stats().num_prompt_tokens)}
        for name, each in (("pause", pauses), ("cpu_pause", cpu_pauses)):
            figures |= {f"{name}_p50_ms": float(np.median([*each.values()])), f"{name}_max_ms": max(each.values())}
        return figures


@contextmanager
def left_folder() -> Iterator[SharedFolder]:
    held = SharedFolder.hold(shared_folder(secrets.token_hex(8)))
    try:
        yield held
    finally:
        held.leave()


def measured(kind: str, asked: argparse.Namespace, folder: str, vocab_size: int) -> tuple[dict[str, float], Run]:
    run, figures = Run(asked, vocab_size), {}
    max_model_len = asked.length + asked.tokens + 500
    num_blocks = asked.streams * (max_model_len // BLOCK + 1) + 1
    options: dict[str, Any] = {"max_model_len": max_model_len, "swap_space": asked.swap_space, "kv_leaving_size": 16}
    with left_folder() as left:
        place = str(left.path) if kind == "left" else None
        with engine_on(folder, num_blocks, **options, kv_leaving_path=str(left.path)) as engine:
            step_seconds = run.until_it_ends(engine)
            if place is not None:
                figures |= run.leave(engine, step_seconds)
        with engine_on(folder, num_blocks, **options, kv_leaving_path=str(left.path)) as engine:
            figures |= run.go_on(engine, place)
            stats = engine.stats()
            figures |= {"fetched_blocks": stats.num_blocks_fetched, "missed_blocks": stats.num_blocks_missed}
            while min(map(len, run.said)) < asked.tokens + 200:  # what is said afterwards is compared
                run.step(engine)
    return figures, run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=SHAPE)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--length", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=128, help="that a stream has had when its engine ends")
    parser.add_argument("--swap-space", type=float, default=0.25, help="GiB of host memory that blocks pass through")
    parser.add_argument("--rounds", type=int, default=2, help="of both kinds; the last one counts")
    asked = parser.parse_args()
    folder = cached_folder(asked.model)
    vocab_size = ModelConfig.load(folder).vocab_size
    results: dict[str, Any] = {**environment(), "asked": vars(asked)}
    said = {}
    for _ in range(asked.rounds):
        for kind in KINDS:
            results[kind], run = measured(kind, asked, folder, vocab_size)
            said[kind] = [ids[: asked.tokens + 200] for ids in run.said]
    results["same tokens"] = said["computed"] == said["left"]
    columns = ("pause_p50_ms", "pause_max_ms", "cpu_pause_p50_ms", "cpu_pause_max_ms", "cpu_ms", "again_tokens")
    print(f"{'':10}" + "".join(f"{name:>18}" for name in columns))
    for kind in KINDS:
        print(f"{kind:10}" + "".join(f"{results[kind][name]:>18.1f}" for name in columns))
    left = results["left"]
    stored = f"Leaving {left['stored_blocks']} blocks beside {left['leaving_steps']} steps"
    taken = f"{left['leaving_cpu_ms']:.0f} ms of processor time, the longest step {left['longest_step_ms']:.0f} ms"
    print(f"{stored} took {taken}")
    print(f"The same tokens: {results['same tokens']}; {left['missed_blocks']} blocks missed")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
