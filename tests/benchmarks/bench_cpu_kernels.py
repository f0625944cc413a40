"""What the CPU kernels achieve, over what the machine can do: `python -m
tests.benchmarks.bench_cpu_kernels`.

The floor of a kernel is the larger of its bytes over the read bandwidth of a large array and its
multiply-adds over the rate of torch's 2048 x 2048 x 2048 product in the dtype that is fastest
here, both measured in the same run, before and after; other work on the machine spoils all of it.
Bytes are those of weights as packed. Shapes are Qwen2.5-0.5B's, weights more than the caches hold:
in bfloat16, and quantized. Times are medians; kernels of the forward pass are replayed from a tape,
as a decode step's are.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine.worker.device.cpu import CpuDevice
from ops import EMBEDDING_QUANTIZATION, cpu
from ops.cpu.matmul.packed import PackedWeight
from ops.cpu.tape import NotOnTape, Tapes
from ops.interface import AttentionMetadata
from ops.published import PublishedKind, PublishedWeight
from tests.benchmarks.floors import Probe

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCAB = 896, 24, 14, 2, 64, 4864, 151_936
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
LEAVES = 2  # the largest power of two up to 8 that divides the heads
BLOCK = 16
QUANTIZATIONS = (None, "int8", "int4")
# Checkpoints that were published quantized, and the kind and group of their weights.
PUBLISHED: dict[str, tuple[PublishedKind, int]] = {
    "W4A16": ("int4", 128),
    "W8A16": ("int8", 128),
    "W8A8": ("w8a8", HIDDEN * INTERMEDIATE),
    "FP8": ("fp8", 128),
}
ANY = "any"  # quantization of a kernel that has no weight to be quantized
UNCACHED = 128 << 20  # bytes of weights and caches that pass by before one is read again


@dataclass(frozen=True)
class Kernel:
    name: str
    calls: Iterator[Callable[[], object]]  # endless; each call on memory that the others have driven from the caches
    num_bytes: float
    num_flops: float
    per_step: int  # how often a step calls it
    quantization: str | None = None  # of its weight


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
    parser.add_argument(
        "--quantization",
        nargs="*",
        choices=[str(name) for name in (*QUANTIZATIONS, *PUBLISHED)],
        default=["None", "int8", "int4"],
    )
    parser.add_argument("--only", default="", help="batches whose name contains this")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{cpu.ISA}, {arguments.threads} threads")
    probe = Probe()
    with torch.inference_mode():
        for batch in BATCHES:
            if arguments.only in batch.name:
                quantizations = [name for name in (*QUANTIZATIONS, *PUBLISHED) if str(name) in arguments.quantization]
                print_batch(batch, quantizations, probe, arguments.repeats)


def print_batch(batch: Batch, quantizations: Sequence[str | None], probe: Probe, repeats: int) -> None:
    before = probe.measure()
    measured = [(kernel, median_time(kernel, repeats)) for kernel in kernels(batch, quantizations)]
    machine = before.mean(probe.measure())
    print(f"\n{batch.name}: read {machine.bandwidth / 1e9:.1f} GB/s, product {machine.product_rate / 1e9:.0f} GFLOP/s")
    print(f"  {'kernel':24} {'us':>10} {'floor us':>10} {'achieved':>9}   us a step")
    floors = [
        max(kernel.num_bytes / machine.bandwidth, kernel.num_flops / machine.product_rate) for kernel, _ in measured
    ]
    for (kernel, seconds), floor in zip(measured, floors, strict=True):
        share = f"{seconds * 1e6:10.1f} {floor * 1e6:10.1f} {floor / seconds:9.0%}"
        print(f"  {kernel.name:24} {share} {seconds * kernel.per_step * 1e6:11.0f}")
    for quantization in quantizations:
        of_step = [
            (kernel.per_step * seconds, kernel.per_step * floor)
            for (kernel, seconds), floor in zip(measured, floors, strict=True)
            if kernel.quantization in (ANY, head_quantization(quantization) if "head" in kernel.name else quantization)
        ]
        total, total_floor = (sum(column) for column in zip(*of_step, strict=True))
        name = f"step {quantization or ''}"
        print(f"  {name:24} {total * 1e6:10.0f} {total_floor * 1e6:10.0f} {total_floor / total:9.0%}")
        seconds_of = {kernel.name.strip(): seconds for kernel, seconds in measured}
        of_trees, of_chains = (
            LAYERS * sum(seconds_of[f"{name}, {order} {quantization or ''}".strip()] for name in ("o", "down"))
            for order in ("tree", "chain")
        )
        print(f"    of it for sums that are the same on 1 to {LEAVES} ranks {(of_trees - of_chains) / total:+.1%}")


def head_quantization(quantization: str | None) -> str | None:
    return EMBEDDING_QUANTIZATION if quantization in ("int8", "int4") else None


def kernels(batch: Batch, quantizations: Sequence[str | None]) -> Iterator[Kernel]:
    rows, sampled = batch.rows, len(batch.query_lens)
    update, residual = torch.randn(rows, HIDDEN), torch.randn(rows, HIDDEN).bfloat16()
    norm = torch.ones(HIDDEN, dtype=torch.bfloat16)
    yield Kernel(
        "add_rms_norm",
        itertools.repeat(lambda: cpu.add_rms_norm(update, residual, norm, 1e-6)),
        rows * HIDDEN * (4 + 2),
        0,
        2 * LAYERS,
        ANY,
    )
    yield from attention(batch)
    for quantization in quantizations:
        yield from linears(rows, quantization)
    for quantization in dict.fromkeys(map(head_quantization, quantizations)):
        yield linear(
            "head", sampled, VOCAB, HIDDEN, cpu.prepare_embedding, cpu.linear_float32, quantization, per_step=1
        )
    logits = torch.randn(sampled, VOCAB)
    index, ones = torch.zeros(sampled, dtype=torch.int32), torch.ones(sampled)
    columns = (index, ones, 0 * ones, torch.arange(sampled), index, index)
    yield Kernel(
        "sample, greedy",
        itertools.repeat(lambda: cpu.sample(logits, 0 * ones, *columns)),
        logits.numel() * 4,
        0,
        1,
        ANY,
    )
    for name, filters in {"all": columns, "top_p": (index + 50, 0.9 * ones, *columns[2:])}.items():
        yield Kernel(
            f"sample, {name}",
            itertools.repeat(lambda filters=filters: cpu.sample(logits, ones, *filters)),
            logits.numel() * 4,
            0,
            0,
            ANY,
        )
    yield Kernel(
        "token_logprobs",
        itertools.repeat(lambda: cpu.token_logprobs(logits, index, 5)),
        logits.numel() * 4,
        0,
        0,
        ANY,
    )


def linears(rows: int, quantization: str | None) -> Iterator[Kernel]:
    """Those of a layer."""
    bias = torch.zeros(QKV, dtype=torch.bfloat16)
    biased = partial(cpu.linear, bias=bias)
    tree = partial(cpu.prepare_tree_linear, num_leaves=LEAVES)
    chain = partial(cpu.prepare_tree_linear, num_leaves=1)
    yield linear("qkv", rows, QKV, HIDDEN, cpu.prepare_linear, biased, quantization)
    yield linear("o, tree", rows, HIDDEN, HEADS * HEAD_DIM, tree, cpu.linear_tree, quantization)
    yield linear("gate_up_silu", rows, 2 * INTERMEDIATE, HIDDEN, cpu.prepare_gate_up, cpu.gate_up_silu, quantization)
    yield linear("down, tree", rows, HIDDEN, INTERMEDIATE, tree, cpu.linear_tree, quantization)
    # What these two would be if their sums could depend on the number of ranks.
    yield linear("o, chain", rows, HIDDEN, HEADS * HEAD_DIM, chain, cpu.linear_tree, quantization, per_step=0)
    yield linear("down, chain", rows, HIDDEN, INTERMEDIATE, chain, cpu.linear_tree, quantization, per_step=0)


def linear(
    name: str,
    rows: int,
    out: int,
    width: int,
    prepare: Callable[..., PackedWeight],
    op: Callable[..., Tensor],
    quantization: str | None,
    per_step: int = LAYERS,
) -> Kernel:
    plain = torch.randn(out, width).mul_(0.02).bfloat16()
    weight, quantize = (
        (published(quantization, out, width), None) if quantization in PUBLISHED else (plain, quantization)
    )
    copies = [prepare(weight, quantization=quantize)]
    num_bytes = copies[0].data.numel()  # as packed
    copies += [prepare(weight, quantization=quantize) for _ in range(1, UNCACHED // num_bytes)]
    weights = itertools.cycle(copies)
    x = torch.randn(rows, width).bfloat16()
    calls = ((lambda weight=weight: op(x, weight)) for weight in weights)
    name = f"{name} {quantization or ''}"
    return Kernel(name, calls, num_bytes, 2 * rows * plain.numel(), per_step, quantization)


def published(name: str, out: int, width: int) -> PublishedWeight:
    """Random codes; zero points too where they are of four bits."""
    kind, group = PUBLISHED[name]
    groups = (torch.arange(width) // group).int()
    num_groups = int(groups[-1]) + 1
    codes = torch.randint(0, 16 if kind == "int4" else 120, (out, width), dtype=torch.uint8)
    zeros = torch.randint(0, 16, (out, num_groups)) if kind == "int4" else torch.full((out, num_groups), 128)
    scales = torch.rand(out, num_groups) / 1000
    return PublishedWeight(kind, torch.bfloat16, codes, None if kind == "fp8" else zeros.short(), scales, groups)


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
    device = CpuDevice()
    caches = [
        tuple(device.zeros(shape, torch.bfloat16).copy_(torch.randn(shape)) for _ in range(2)) for _ in range(count)
    ]
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
        ANY,
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
        ANY,
    )


def median_time(kernel: Kernel, repeats: int) -> float:
    """Seconds a call, as on a tape if it can be on one: the median over `repeats` of rounds that
    last at least 2 ms.
    """
    started = time.perf_counter()
    next(kernel.calls)()
    next(kernel.calls)()
    calls = max(1, int(0.002 / (time.perf_counter() - started) * 2))
    tapes, times = Tapes(), []
    for _ in range(repeats):
        run = one_after_the_other(list(itertools.islice(kernel.calls, calls)), tapes)
        started = time.perf_counter()
        run()
        times.append((time.perf_counter() - started) / calls)
    return statistics.median(times)


def one_after_the_other(functions: Sequence[Callable[[], Any]], tapes: Tapes) -> Callable[[], object]:
    def run() -> Any:
        for function in functions[:-1]:
            function()
        return functions[-1]()

    try:
        return tapes.capture(run)
    except NotOnTape:
        return run


if __name__ == "__main__":
    main()
