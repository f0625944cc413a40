"""The works W1 to W4: what is asked of the engines, how it is measured, and what the machine would
allow.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cluster.bench.workload import Lengths, random_works
from cluster.progress import progress
from engine.checkpoint.model_config import ModelConfig
from tests.benchmarks.apart import Apart
from tests.benchmarks.floors import Machine, Model, Probe, Step
from tests.benchmarks.peers import Peer, Squadron, Times

SEED = 0
WARM_UP_TOKENS = 4
MIXED_INPUT, MIXED_OUTPUT = Lengths(16, 256), Lengths(16, 128)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Requests that are given at once, and which of their tokens count: those of the prompts, those
    after the first, or all.
    """

    num_requests: int
    input_len: int
    output_len: int
    counted: Literal["prefill", "decode", "output"]

    def __str__(self) -> str:
        return f"{self.num_requests} × {self.input_len} in, {self.output_len} out: {self.counted}"

    def rate(self, seconds: Times) -> float:
        """Tokens a second."""
        match self.counted:
            case "prefill":
                return self.num_requests * self.input_len / seconds.first
            case "decode":
                return self.num_requests * (self.output_len - 1) / (seconds.last - seconds.first)
            case "output":
                return self.num_requests * self.output_len / seconds.last

    def floor(self, model: Model, machine: Machine) -> float:
        """Tokens a second that the machine would allow."""
        count = self.num_requests
        causal = self.input_len * (self.input_len + 1) // 2
        prefill = [Step(count * self.input_len, count, 0, count * causal)]
        contexts = [count * (self.input_len + past) for past in range(1, self.output_len)]
        decode = [Step(count, count, context, context) for context in contexts]
        first, rest = model.floor_seconds(prefill, machine), model.floor_seconds(decode, machine)
        return self.rate(Times(first, first + rest))

    def smaller(self) -> "Comparison":
        return replace(self, input_len=self.input_len // 8, output_len=max(1, self.output_len // 8))


COMPARISONS = {
    "W1": Comparison(1, 128, 64, "decode"),
    "W2": Comparison(16, 256, 64, "output"),
    "W3": Comparison(1, 2048, 1, "prefill"),
}


def compare(
    work: Comparison, peers: Mapping[str, Peer], folder: str, repeats: int, quantization: str | None
) -> dict[str, Any]:
    """Tokens a second of each run of each peer, and what the machine could do before and after.

    The floor is that of weights quantized so.
    """
    vocab_size = ModelConfig.load(folder).vocab_size
    random = np.random.default_rng(SEED)
    exactly = Lengths(work.input_len, work.input_len)

    def run(peer: Peer, output_len: int) -> Times:
        works = random_works(random, work.num_requests, exactly, Lengths(output_len, output_len), vocab_size)
        return peer.run(works)

    for peer in peers.values():
        run(peer, min(WARM_UP_TOKENS, work.output_len))
    probe = Probe()
    before = probe.measure()
    rates: dict[str, list[float]] = {name: [] for name in peers}
    with progress(total=repeats * len(peers), desc=str(work)) as bar:
        for _ in range(repeats):
            for name, peer in peers.items():
                rates[name].append(work.rate(run(peer, work.output_len)))
                bar.update()
    after = probe.measure()
    floor = work.floor(Model.load(folder, quantization), before.mean(after))
    return {"work": str(work), "before": _machine(before), "after": _machine(after), "floor": floor, "tok_per_s": rates}


def mixed(folder: str, num_requests: int, repeats: int) -> dict[str, Any]:
    """Output tokens a second of the same requests: now, without steps built ahead, and as it was at
    first light.
    """
    random = np.random.default_rng(SEED)
    vocab_size = ModelConfig.load(folder).vocab_size
    works = random_works(random, num_requests, MIXED_INPUT, MIXED_OUTPUT, vocab_size)
    num_output = sum(work.output_len for work in works)
    name = f"{num_requests} × {MIXED_INPUT} in, {MIXED_OUTPUT} out, {Path(folder).name}: output"
    with ExitStack() as stack:
        engines = {
            "squadron": stack.enter_context(Apart(Squadron, folder)),
            "depth 1": stack.enter_context(Apart(Squadron, folder, depth=1)),
            "first light": stack.enter_context(Apart(Squadron, folder, depth=1, ops_backend="reference")),
        }
        rates: dict[str, list[float]] = {label: [] for label in engines}
        for engine in engines.values():
            engine.run(works[:WARM_UP_TOKENS])
        with progress(total=repeats * len(engines), desc=name) as bar:
            for _ in range(repeats):
                for label, engine in engines.items():
                    rates[label].append(num_output / engine.run(works).last)
                    bar.update()
    return {"work": name, "tok_per_s": rates}


def _machine(machine: Machine) -> dict[str, float]:
    return {"read_gb_per_s": machine.bandwidth / 1e9, "product_gflop_per_s": machine.product_rate / 1e9}
