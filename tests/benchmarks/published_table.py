"""Published formats in one table of Markdown: `python -m tests.benchmarks.published_table`.

For each format: the largest difference of a logit to transformers' with the numbers that the codes
stand for (a small random model, prompts of up to 100 tokens in float32, prefilled in chunks and
decoded), whether bfloat16 logits have the same bits with TP 1, 2 and 4, and, for each TP of `--tp`,
tokens a second of W1 to W3 (see `tests.benchmarks.works`), with their ratios to bf16 and, where it
is installed, to llama.cpp's Q4_0 or Q8_0 of the same linears, whichever has as many bits, all in
turn. Rates need an idle machine, and `--works` without a name leaves them out.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from operator import truediv
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

import ops as backends
from cluster.bench.workload import Work
from cluster.launch.ray_cluster import ray_cluster
from tests.benchmarks import llama_cpp
from tests.benchmarks.apart import Apart
from tests.benchmarks.bench_published import published
from tests.benchmarks.folders import SHAPE, cached_folder
from tests.benchmarks.peers import Peer, Squadron, Times
from tests.benchmarks.works import COMPARISONS, compare
from tests.parallel.published.packers import FORMATS
from tests.parallel.published.publish import make_plain, publish
from tests.parallel.ranks import CPU, run_ranks
from tests.parallel.spec.saved import Saved, logits_in_steps, make, prompts

RANKS = (1, 2, 4)
FOUR_BITS = ("awq", "gptq 4", "gptq 4 act-order", "W4A16", "W4A16 zeros", "W4A16 act-order")


class Ranks(AbstractContextManager["Ranks"]):
    """An engine of some ranks, one thread each, in a Ray cluster of their own."""

    def __init__(self, folder: str, tp: int) -> None:
        self._stack = ExitStack()
        self._stack.enter_context(ray_cluster(num_workers=tp))
        engine = Squadron(folder, tensor_parallel_size=tp, num_threads=1)
        self._engine = self._stack.enter_context(engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, works: Sequence[Work]) -> Times:
        return self._engine.run(works)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS), metavar="FORMAT")
    parser.add_argument("--works", nargs="*", choices=COMPARISONS, default=list(COMPARISONS))
    parser.add_argument("--tp", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--model", default=SHAPE, help=f"shape of W1 to W3, or demo (default: {SHAPE})")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    works = [(tp, work) for tp in options.tp for work in options.works]
    heads = ["format", "logits", "bits", *(f"TP={tp}, {COMPARISONS[work]}" for tp, work in works)]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "plain").mkdir()
        plain = make_plain(Path(folder) / "plain")
        for number, name in enumerate(options.formats):
            (Path(folder) / str(number)).mkdir()
            cells = agreement(publish(plain, FORMATS[name], Path(folder) / str(number)))
            for tp in options.tp if options.works else ():
                cells += rates(name, tp, options.model, options.works, options.rounds)
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


def agreement(saved: Saved) -> list[str]:
    """The largest difference of a logit, float32, and whether bfloat16's bits are those of one
    rank.
    """
    ops = backends.select("cpu", CPU)
    (whole,) = run_ranks(1, lambda tp, pp: logits_in_steps(make(saved, tp, pp, torch.float32, ops)))
    assert whole is not None
    with torch.inference_mode():
        wanted = [saved.model(torch.tensor([prompt])).logits[0] for prompt in prompts()]
    difference = max(float((got - want).abs().max()) for got, want in zip(whole, wanted, strict=True))
    sharded = [
        rank
        for size in RANKS
        for rank in run_ranks(size, lambda tp, pp: logits_in_steps(make(saved, tp, pp, torch.bfloat16, ops)))
    ]
    return [f"{difference:.1e}", "same" if all(same(rank, sharded[0]) for rank in sharded) else "differ"]


def same(logits: list[Tensor] | None, others: list[Tensor] | None) -> bool:
    assert logits is not None and others is not None
    return all(torch.equal(one, other) for one, other in zip(logits, others, strict=True))


def rates(name: str, tp: int, model: str, works: Sequence[str], rounds: int) -> Iterator[str]:
    """Medians of tokens a second, and of the rounds' ratios to bf16 and to llama.cpp."""
    plain = cached_folder(model)
    folder = str(published(Path(plain), name))
    with ExitStack() as stack:
        peers: dict[str, Peer] = {
            "published": stack.enter_context(Apart(*_engine(folder, tp))),
            "bf16": stack.enter_context(Apart(*_engine(plain, tp))),
        }
        if llama_cpp.is_installed():
            quantization = "Q4_0" if name in FOUR_BITS else "Q8_0"
            peers["llama.cpp"] = stack.enter_context(Apart(llama_cpp.LlamaCpp, plain, quantization, layers_only=True))
        for work in works:
            comparison = COMPARISONS[work].smaller() if model == "demo" else COMPARISONS[work]
            told = compare(comparison, peers, plain, rounds, None)["tok_per_s"]
            ours = told.pop("published")
            ratios = [statistics.median(map(truediv, ours, theirs)) for theirs in told.values()]
            yield f"{statistics.median(ours):.1f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})"


def _engine(folder: str, tp: int) -> tuple[object, ...]:
    return (Squadron, folder) if tp == 1 else (Ranks, folder, tp)


if __name__ == "__main__":
    main()
