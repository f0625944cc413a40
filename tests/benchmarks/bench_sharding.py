"""What sharding costs and gains on the cores of one machine: `python -m
tests.benchmarks.bench_sharding [P7 P8 P9]`.

Random bf16 weights of Qwen2.5-0.5B's shape, ranks in Ray's processes. P7: milliseconds a decode
step of one rank with two threads, and of two tensor-parallel ranks with one each. P8: output tokens
a second of two pipeline stages with a thread each, at depth 1 and at depth 2, of a queue of
requests of mixed lengths, 64 at a time, a step at a time and as many as there are stages and one
more: fewer requests would not do, a stage reads its weights for 8 rows as long as for 16. P9:
milliseconds a token of one stream that repeats nothing, by one rank, by two stages that have each
step early, by two that also look for what repeats, and by two that wait for the driver, with a
thread each. All of an item are started in turn; medians of all rounds.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from cluster.bench.workload import Lengths, Work, random_works
from cluster.launch.ray_cluster import ray_cluster
from cluster.progress import progress
from engine.checkpoint.model_config import ModelConfig
from engine.sampling_params import SamplingParams
from tests.benchmarks.folders import SHAPE, cached_folder
from tests.benchmarks.peers import Squadron, Times

INPUT, OUTPUT = 128, 64
MIXED_REQUESTS, MIXED_SEQS, MIXED_INPUT, MIXED_OUTPUT = 256, 64, Lengths(32, 224), Lengths(16, 112)
WARM_UP_TOKENS = 4
WHOLE = {"tensor_parallel_size": 1, "num_threads": 2, "distributed_executor_backend": "ray"}
HALVES = {"tensor_parallel_size": 2, "num_threads": 1}
SLOW = {"tensor_parallel_size": 1, "num_threads": 1, "distributed_executor_backend": "ray"}
STAGES = {"pipeline_parallel_size": 2, "num_threads": 1}
DRAFTS = {"speculative_config": {"method": "ngram"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="*", metavar="ITEM", help="P7, P8 or P9; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", help="a checkpoint's folder; default: random weights, kept in the cache")
    options = parser.parse_args()
    folder = options.model or cached_folder(SHAPE)
    with ray_cluster(num_workers=2):
        if "P7" in (options.items or ["P7"]):
            for batch in (1, 16):
                whole, halves = in_turn(
                    f"P7, batch {batch}",
                    [partial(decode_ms, folder, batch, **arguments) for arguments in (WHOLE, HALVES)],
                    options.rounds,
                )
                print(
                    f"P7 decode batch {batch:2}: one rank × 2 threads {whole:.2f} ms, two ranks × 1 thread "
                    f"{halves:.2f} ms: {halves / whole:.2f}×",
                    flush=True,
                )
        if "P8" in (options.items or ["P8"]):
            shallow, deep = in_turn(
                "P8", [partial(throughput, folder, depth=depth, **STAGES) for depth in (1, None)], options.rounds
            )
            print(
                f"P8 two stages: depth 1 {shallow:.1f} tok/s, depth 3 {deep:.1f} tok/s: {deep / shallow:.2f}×",
                flush=True,
            )
        if "P9" in (options.items or ["P9"]):
            kinds: list[dict[str, Any]] = [SLOW, STAGES, STAGES | DRAFTS, STAGES | {"depth": 1}]
            whole, ahead, drafting, waiting = in_turn(
                "P9", [partial(decode_ms, folder, 1, Drawn, **arguments) for arguments in kinds], options.rounds
            )
            print(
                f"P9 one stream: one rank {whole:.2f} ms a token, two stages {ahead:.2f}: {whole / ahead:.2f} of its "
                f"rate; with drafts {drafting:.2f}: {whole / drafting:.2f}; two that wait for the driver "
                f"{waiting:.2f}: {whole / waiting:.2f}"
            )


def in_turn(label: str, measures: list[Callable[[], float]], rounds: int) -> list[float]:
    """The median of each."""
    figures: list[list[float]] = [[] for _ in measures]
    with progress(total=rounds * len(measures), desc=label) as bar:
        for _ in range(rounds):
            for measure, values in zip(measures, figures, strict=True):
                values.append(measure())
                bar.update()
    return [statistics.median(values) for values in figures]


class Drawn(Work):
    """An answer that is drawn: in what random weights like best, much would repeat."""

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(temperature=1.0, seed=0, max_tokens=self.output_len, ignore_eos=True)


def decode_ms(folder: str, batch: int, kind: type[Work] = Work, **arguments: Any) -> float:
    works = make_works(folder, batch, Lengths(INPUT, INPUT), Lengths(OUTPUT, OUTPUT))
    works = [kind(work.prompt, work.output_len) for work in works]
    times = run(folder, works, **arguments)
    return 1e3 * (times.last - times.first) / (OUTPUT - 1)


def throughput(folder: str, **arguments: Any) -> float:
    works = make_works(folder, MIXED_REQUESTS, MIXED_INPUT, MIXED_OUTPUT)
    seconds = run(folder, works, max_num_seqs=MIXED_SEQS, **arguments).last
    return sum(work.output_len for work in works) / seconds


def make_works(folder: str, count: int, input_lens: Lengths, output_lens: Lengths) -> list[Work]:
    return random_works(np.random.default_rng(0), count, input_lens, output_lens, ModelConfig.load(folder).vocab_size)


def run(folder: str, works: list[Work], **arguments: Any) -> Times:
    warm_up = Lengths(WARM_UP_TOKENS, WARM_UP_TOKENS)
    with Squadron(folder, **arguments) as engine:
        engine.run(make_works(folder, 4, warm_up, warm_up))
        return engine.run(works)


if __name__ == "__main__":
    main()
