"""What the CPU kernels achieve, over what the machine can do: `python -m tests.benchmarks.bench_cpu_kernels`.

The floor of a kernel is the larger of its bytes over the read bandwidth of a large array and its multiply-adds over the rate
of torch's 2048 x 2048 x 2048 bfloat16 product, both measured in the same run, before and after; other work on the machine
spoils all of it. Shapes are Qwen2.5-0.5B's, weights bfloat16 and more than the caches hold. Times are medians.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ops import cpu
from ops.interface import AttentionMetadata
from tests.benchmarks.floors import Probe

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCAB = 896, 24, 14, 2, 64, 4864, 151_936
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
LEAVES = 2  # the largest power of two up to 8 that divides the heads
BLOCK = 16
UNCACHED = 128 << 20  # bytes of weights and caches that pass by before one is read again


@dataclass(frozen=True)
class Kernel:
    name: str
    calls: Iterator[Callable[[], object]]  # endless; each call on memory that the others have driven from the caches
    num_bytes: float
    num_flops: float
    per_step: int  # how often a step calls it


@dataclass(frozen=True)
class Batch:
    """What a step computes: a query length and a context length a sequence."""

    name: str
    query_lens: list[int]
    context_lens: list[int]

    @property
    def rows(self) -> int:
        return sum(self.query_lens)


BATCHES = [
    Batch("decode 1", [1], [512]),
    Batch("decode 16", [1] * 16, [256 + 34 * i for i in range(16)]),
    Batch("decode 64", [1] * 64, [256 + 8 * i for i in range(64)]),
    Batch("15 decodes + 256", [1] * 15 + [256], [256 + 34 * i for i in range(15)] + [256]),
    Batch("prefill 512", [512], [512]),
    Batch("prefill 2048", [2048], [2048]),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", default="", help="batches whose name contains this")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{cpu.ISA}, {arguments.threads} threads")
    probe = Probe()
    with torch.inference_mode():
        for batch in BATCHES:
            if arguments.only in batch.name:
                print_batch(batch, probe, arguments.repeats)


def print_batch(batch: Batch, probe: Probe, repeats: int) -> None:
    before = probe.measure()
    measured = [(kernel, median_time(kernel, repeats)) for kernel in kernels(batch)]
    machine = before.mean(probe.measure())
    print(f"\n{batch.name}: read {machine.bandwidth / 1e9:.1f} GB/s, product {machine.product_rate / 1e9:.0f} GFLOP/s")
    print(f"  {'kernel':24} {'us':>10} {'floor us':>10} {'achieved':>9}   us a step")
    total = total_floor = 0.0
    for kernel, seconds in measured:
        floor = max(kernel.num_bytes / machine.bandwidth, kernel.num_flops / machine.product_rate)
        total += seconds * kernel.per_step
        total_floor += floor * kernel.per_step
        share = f"{seconds * 1e6:10.1f} {floor * 1e6:10.1f} {floor / seconds:9.0%}"
        print(f"  {kernel.name:24} {share} {seconds * kernel.per_step * 1e6:11.0f}")
    print(f"  {'step':24} {total * 1e6:10.0f} {total_floor * 1e6:10.0f} {total_floor / total:9.0%}")


def kernels(batch: Batch) -> Iterator[Kernel]:
    rows, sampled = batch.rows, len(batch.query_lens)
    update, residual = torch.randn(rows, HIDDEN), torch.randn(rows, HIDDEN).bfloat16()
    norm = torch.ones(HIDDEN, dtype=torch.bfloat16)
    yield Kernel(
        "add_rms_norm",
        itertools.repeat(lambda: cpu.add_rms_norm(update, residual, norm, 1e-6)),
        rows * HIDDEN * (4 + 2),
        0,
        2 * LAYERS,
    )
    bias = torch.zeros(QKV, dtype=torch.bfloat16)
    yield linear("qkv", rows, QKV, HIDDEN, cpu.prepare_linear, lambda x, weight: cpu.linear(x, weight, bias))
    yield from attention(batch)
    yield linear("o, tree", rows, HIDDEN, HEADS * HEAD_DIM, tree, cpu.linear_tree)
    yield linear("gate_up_silu", rows, 2 * INTERMEDIATE, HIDDEN, cpu.prepare_gate_up, cpu.gate_up_silu)
    yield linear("down, tree", rows, HIDDEN, INTERMEDIATE, tree, cpu.linear_tree)
    yield linear("head", sampled, VOCAB, HIDDEN, cpu.prepare_linear, cpu.linear_float32, per_step=1)
    logits = torch.randn(sampled, VOCAB)
    index, ones = torch.zeros(sampled, dtype=torch.int32), torch.ones(sampled)
    columns = (index, ones, 0 * ones, torch.arange(sampled), index, index)
    yield Kernel(
        "sample, greedy",
        itertools.repeat(lambda: cpu.sample(logits, 0 * ones, *columns)),
        logits.numel() * 4,
        0,
        1,
    )
    for name, filters in {"all": columns, "top_p": (index + 50, 0.9 * ones, *columns[2:])}.items():
        yield Kernel(
            f"sample, {name}",
            itertools.repeat(lambda filters=filters: cpu.sample(logits, ones, *filters)),
            logits.numel() * 4,
            0,
            0,
        )
    yield Kernel(
        "token_logprobs",
        itertools.repeat(lambda: cpu.token_logprobs(logits, index, 5)),
        logits.numel() * 4,
        0,
        0,
    )


def tree(weight: Tensor) -> object:
    return cpu.prepare_tree_linear(weight, LEAVES)


def linear(
    name: str,
    rows: int,
    out: int,
    width: int,
    prepare: Callable[[Tensor], object],
    op: Callable[[Tensor, object], Tensor],
    per_step: int = LAYERS,
) -> Kernel:
    weight = torch.randn(out, width).mul_(0.02).bfloat16()
    weights = itertools.cycle([prepare(weight) for _ in range(max(1, UNCACHED // (2 * weight.numel())))])
    x = torch.randn(rows, width).bfloat16()
    calls = ((lambda weight=weight: op(x, weight)) for weight in weights)
    return Kernel(name, calls, 2 * weight.numel(), 2 * rows * weight.numel(), per_step)


def attention(batch: Batch) -> Iterator[Kernel]:
    """Rotary and attention, on caches in which every sequence's blocks lie scattered."""
    counts = [-(-length // BLOCK) for length in batch.context_lens]
    ids = torch.split(torch.randperm(sum(counts)).int() + 1, counts)
    tables = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    positions = torch.cat(
        [torch.arange(end - n, end) for n, end in zip(batch.query_lens, batch.context_lens, strict=True)]
    )
    rows = torch.arange(len(counts)).repeat_interleave(torch.tensor(batch.query_lens))
    metadata = AttentionMetadata(
        query_starts=torch.tensor([0, *batch.query_lens]).cumsum(0).int(),
        context_lens=torch.tensor(batch.context_lens, dtype=torch.int32),
        block_tables=tables,
        slot_mapping=(tables[rows, positions // BLOCK] * BLOCK + positions % BLOCK).int(),
        max_query_len=max(batch.query_lens),
        max_context_len=max(batch.context_lens),
    )
    cache_bytes = 4 * KV_HEADS * HEAD_DIM * sum(batch.context_lens)
    shape = (sum(counts) + 1, KV_HEADS, BLOCK, HEAD_DIM)
    count = min(LAYERS, max(2, UNCACHED // cache_bytes))
    caches = [tuple(torch.randn(shape).bfloat16() for _ in range(2)) for _ in range(count)]
    qkv = torch.randn(batch.rows, QKV).bfloat16()
    angles = torch.randn(max(batch.context_lens), HEAD_DIM)
    query = torch.randn(batch.rows, HEADS, HEAD_DIM).bfloat16()
    where, scale = positions.int(), HEAD_DIM**-0.5
    yield Kernel(
        "rotary_and_cache",
        (
            (lambda cache=cache: cpu.rotary_and_cache(qkv, where, angles, metadata.slot_mapping, *cache))
            for cache in itertools.cycle(caches)
        ),
        2 * qkv.numel(),
        0,
        LAYERS,
    )
    yield Kernel(
        "paged_attention",
        (
            (lambda cache=cache: cpu.paged_attention(query, *cache, metadata, scale))
            for cache in itertools.cycle(caches)
        ),
        cache_bytes,
        4 * HEADS * HEAD_DIM * int((positions + 1).sum()),
        LAYERS,
    )


def median_time(kernel: Kernel, repeats: int) -> float:
    """Seconds a call: the median over `repeats` of rounds that last at least 2 ms."""
    started = time.perf_counter()
    next(kernel.calls)()
    next(kernel.calls)()
    calls = max(1, int(0.002 / (time.perf_counter() - started) * 2))
    times = []
    for _ in range(repeats):
        functions = list(itertools.islice(kernel.calls, calls))
        started = time.perf_counter()
        for function in functions:
            function()
        times.append((time.perf_counter() - started) / calls)
    return statistics.median(times)


if __name__ == "__main__":
    main()
