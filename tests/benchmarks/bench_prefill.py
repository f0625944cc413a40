"""What streams gain when long prompts are computed by another engine, and what that costs.

    python -m tests.benchmarks.bench_prefill [--model qwen2.5-0.5b] [--streams 8] [--rounds 2]

Short streams run, and long prompts come in, each for one token, so many steps after the other:
"alone" without the prompts, "together" with them on the same engine, "apart" with their blocks
handed over in shared memory by a second engine, which computes them first. All engines are in this
process. Times are processor time of all threads, as the engine that answers has it: what the second
one takes is told apart, as if it had a machine of its own. Between two tokens of a stream: p50, p99
and the longest; and for each prompt what it costs where it is computed, and where it is answered.
"""

import argparse
import json
import secrets
import time
from contextlib import ExitStack
from typing import Any

import numpy as np

from cluster.bench.environment import environment
from engine.checkpoint.model_config import ModelConfig
from engine.core.llm_engine import LLMEngine
from engine.offload.shared_folder import shared_folder
from engine.sampling_params import SamplingParams
from tests.benchmarks.bench_tiers import BLOCK, engine_on
from tests.benchmarks.folders import SHAPE, cached_folder
from tests.engine.support.arrivals import add_request

ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
KINDS = ("alone", "together", "apart")
WARM_STEPS = 4


class Run:
    """Of one kind; tokens depend on nothing but the workload."""

    def __init__(self, asked: argparse.Namespace, vocab_size: int) -> None:
        random = np.random.default_rng(0)
        self.streams = random.integers(100, min(vocab_size, 4000), (asked.streams, 16)).tolist()
        self.prompts = random.integers(100, min(vocab_size, 4000), (asked.prompts, asked.length)).tolist()
        self.gap = asked.gap
        self.said: dict[str, list[int]] = {}
        self.gaps: list[float] = []  # seconds of processor time between two tokens of a stream
        self.computing: list[float] = []  # of each prompt, in the second engine
        self.answering: list[float] = []  # from its arrival at the first one to its token there
        self._begun: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._clock = 0.0  # of the first engine

    def go(self, engine: LLMEngine, second: LLMEngine | None, *, has_prompts: bool) -> None:
        num_steps = WARM_STEPS + self.gap * len(self.prompts)
        params = SamplingParams(temperature=0.0, max_tokens=2 * num_steps + 15 * BLOCK, ignore_eos=True)
        for number, prompt in enumerate(self.streams):
            add_request(engine, f"s{number}", prompt, params)
        waiting = list(enumerate(self.prompts)) if has_prompts else []
        step = 0
        while step < num_steps or self._begun:
            if waiting and step >= WARM_STEPS and (step - WARM_STEPS) % self.gap == 0:
                number, prompt = waiting.pop(0)
                if second is not None:
                    self.computing.append(computed(second, prompt))
                add_request(engine, f"p{number}", prompt, ONE_TOKEN, is_prefilled=second is not None)
                self._begun[f"p{number}"] = self._clock
            self._step(engine, is_counted=step >= WARM_STEPS)
            step += 1
        for number in range(len(self.streams)):
            engine.abort_request(f"s{number}")

    def _step(self, engine: LLMEngine, *, is_counted: bool) -> None:
        before = time.process_time()
        outputs = engine.step()
        self._clock += time.process_time() - before
        for output in outputs:
            name = output.request_id
            self.said.setdefault(name, []).extend(output.outputs[0].token_ids)
            if name in self._begun:
                self.answering.append(self._clock - self._begun.pop(name))
            elif is_counted and name in self._last:
                self.gaps.append(self._clock - self._last[name])
            self._last[name] = self._clock


def computed(engine: LLMEngine, prompt: list[int]) -> float:
    """Seconds of processor time until its blocks are handed over."""
    before = time.process_time()
    add_request(engine, "p", prompt, ONE_TOKEN)
    while engine.has_unfinished_requests():
        engine.step()
    return time.process_time() - before


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=SHAPE)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--length", type=int, default=1024, help="tokens of a prompt")
    parser.add_argument("--gap", type=int, default=24, help="steps from one prompt to the next")
    parser.add_argument("--rounds", type=int, default=2, help="of all kinds; the last one counts")
    asked = parser.parse_args()
    folder = cached_folder(asked.model)
    vocab_size = ModelConfig.load(folder).vocab_size
    results: dict[str, Any] = {**environment(), "asked": vars(asked)}
    said = {}
    for _ in range(asked.rounds):
        for kind in KINDS:
            results[kind], said[kind] = measured(kind, asked, folder, vocab_size)
    results["same tokens"] = is_same(said)
    print(f"{'':10}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}{'a prompt, computed':>20}{'answered':>10}  (processor time)")
    for kind in KINDS:
        p50, p99, longest, computing, answering, *_ = results[kind].values()
        print(f"{kind:10}{p50:>9.1f}{p99:>9.1f}{longest:>9.1f}{computing:>20.1f}{answering:>10.1f}")
    print(f"The same tokens: {results['same tokens']}; {results['apart']['blocks_missed']} blocks missed")
    print(json.dumps(results))


def measured(
    kind: str, asked: argparse.Namespace, folder: str, vocab_size: int
) -> tuple[dict[str, float], dict[str, list[int]]]:
    """Figures, and all tokens by stream and prompt."""
    run = Run(asked, vocab_size)
    num_tokens = 2 * (WARM_STEPS + asked.gap * asked.prompts) + 16 * BLOCK  # of a stream, at most
    max_model_len = max(num_tokens, asked.length + BLOCK)
    num_blocks = (asked.streams * num_tokens + asked.prompts * (asked.length + BLOCK) + max_model_len) // BLOCK
    sizes: dict[str, Any] = {"max_model_len": max_model_len}
    shared = sizes | {"kv_offloading_path": shared_folder(secrets.token_hex(8)), "swap_space": 1.0}
    with ExitStack() as stack:
        second = None
        if kind == "apart":
            second = stack.enter_context(engine_on(folder, num_blocks, **shared, kv_role="producer"))
        options = shared | {"kv_role": "consumer"} if kind == "apart" else sizes
        engine = stack.enter_context(engine_on(folder, num_blocks, **options))
        run.go(engine, second, has_prompts=kind != "alone")
        stats = engine.stats()
    p50, p99 = (1000 * float(np.quantile(run.gaps, share)) for share in (0.5, 0.99))
    computing, answering = (1000 * float(np.mean(each)) if each else 0.0 for each in (run.computing, run.answering))
    figures = {"p50_ms": p50, "p99_ms": p99, "max_ms": 1000 * max(run.gaps), "computed_ms": computing}
    figures |= {"answered_ms": answering, "blocks_fetched": stats.num_blocks_fetched}
    return figures | {"blocks_missed": stats.num_blocks_missed}, run.said


def is_same(said: dict[str, dict[str, list[int]]]) -> bool:
    """Streams end after so many steps, which are not the same in each kind."""
    first = said["together"]
    shared = [(ids, other[name]) for other in said.values() for name, ids in first.items() if name in other]
    return all(one[: len(two)] == two[: len(one)] for one, two in shared)


if __name__ == "__main__":
    main()
