"""What is measured of each kernel."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ops.interface import AttentionMetadata, Ops
from ops.reference import paged_attention, sample, silu_and_mul
from tests.benchmarks.gpu.case import Case, Sizes, has_float8
from tests.benchmarks.gpu.weights import experts_cases, quantized_cases

BLOCK = 16
EPS = 1e-6


def cases(ops: Ops, sizes: Sizes, device: torch.device, dtype: torch.dtype) -> Iterator[list[Case]]:
    """Each a list of the same case in different memory."""

    def random(*shape: int, of: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, device=device).to(of)

    heads, kv_heads, dim, hidden = sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.hidden
    caches = [dtype, torch.float8_e4m3fn] if ops.NAME.startswith("triton") and has_float8(device) else [dtype]
    for cache in caches:
        yield [_attention(ops, sizes, sizes.sequences, 1, sizes.context, device, dtype, cache) for _ in range(2)]
    yield [_attention(ops, sizes, 1, 1, sizes.context, device, dtype, dtype) for _ in range(8)]
    yield [_attention(ops, sizes, 1, sizes.prompt, sizes.prompt, device, dtype, dtype)]
    for rows in (1, sizes.sequences, sizes.prompt):
        weights, gated = [random(hidden, hidden) for _ in range(4)], random(2 * sizes.width, hidden)
        yield from _products(ops, random(rows, hidden), weights, gated)
        yield from _tree(ops, random(rows, sizes.width), random(hidden, sizes.width))
    x, update, weight = random(sizes.prompt, hidden), random(sizes.prompt, hidden, of=torch.float32), random(hidden)

    def norm() -> Tensor:
        return (x.double() * (x.double().square().mean(1, keepdim=True) + EPS).rsqrt() * weight.double()).to(dtype)

    item = dtype.itemsize
    yield [Case("rms_norm", lambda: ops.rms_norm(x, weight, EPS), norm, 2 * x.numel() * item)]
    zeros = torch.zeros_like(update)
    add_bytes = x.numel() * (3 * item + 4)
    yield [Case("add_rms_norm", lambda: ops.add_rms_norm(zeros, x, weight, EPS), norm, add_bytes)]
    both = random(sizes.prompt, 2 * sizes.width)
    yield [
        Case("silu_and_mul", lambda: ops.silu_and_mul(both), lambda: silu_and_mul(both), 3 * both.numel() // 2 * item)
    ]
    yield [_rotary(ops, sizes, random(sizes.prompt, (heads + 2 * kv_heads) * dim))]
    yield [_sampling(ops, random(sizes.sequences, sizes.vocab, of=torch.float32) * 2)]
    yield from quantized_cases(ops, sizes, device, dtype)
    if ops.EXACT or ops.NAME == "reference":  # the fast backend's experts are the exact one's
        yield from experts_cases(ops, sizes, device, dtype)


def _attention(
    ops: Ops,
    sizes: Sizes,
    sequences: int,
    rows: int,
    context: int,
    device: torch.device,
    dtype: torch.dtype,
    cache: torch.dtype,
) -> Case:
    blocks = -(-context // BLOCK)
    shape = (1 + sequences * blocks, sizes.kv_heads, BLOCK, sizes.head_dim)
    keys, values = (torch.randn(shape, device=device).to(cache) for _ in range(2))
    tables = (torch.randperm(sequences * blocks, device=device) + 1).int().view(sequences, blocks)
    query = torch.randn(sequences * rows, sizes.heads, sizes.head_dim, device=device).to(dtype)
    scale = sizes.head_dim**-0.5

    def metadata(count: int) -> AttentionMetadata:
        return AttentionMetadata(
            query_starts=torch.arange(count + 1, dtype=torch.int32, device=device) * rows,
            context_lens=torch.full((count,), context, dtype=torch.int32, device=device),
            block_tables=tables[:count].contiguous(),
            slot_mapping=torch.zeros(count * rows, dtype=torch.int32, device=device),
            max_query_len=rows,
            max_context_len=context,
        )

    def want() -> Tensor:
        used = tables[:1].long().flatten()
        first = AttentionMetadata(
            query_starts=torch.tensor([0, rows], dtype=torch.int32, device=device),
            context_lens=torch.tensor([context], dtype=torch.int32, device=device),
            block_tables=torch.arange(blocks, dtype=torch.int32, device=device)[None],
            slot_mapping=torch.zeros(rows, dtype=torch.int32, device=device),
            max_query_len=rows,
            max_context_len=context,
        )
        return paged_attention(query[:rows].float(), keys[used].float(), values[used].float(), first, scale)

    whole = metadata(sequences)
    seen = rows * context - rows * (rows - 1) // 2
    kind = f"decode attention, {sequences} × {context}" if rows == 1 else f"prefill attention, {rows}"
    return Case(
        kind + (", fp8" if cache != dtype else ""),
        lambda: ops.paged_attention(query, keys, values, whole, scale),
        want,
        2 * sequences * context * sizes.kv_heads * sizes.head_dim * cache.itemsize + 2 * query.numel() * dtype.itemsize,
        4 * sequences * seen * sizes.heads * sizes.head_dim,
    )


def _products(ops: Ops, x: Tensor, weights: list[Tensor], gated: Tensor) -> Iterator[list[Case]]:
    def plain(weight: Tensor) -> Case:
        prepared = ops.prepare_linear(weight)
        num_bytes = x.dtype.itemsize * (x.numel() + weight.numel() + x.shape[0] * weight.shape[0])
        name = f"linear, {x.shape[0]} rows"
        return Case(
            name, lambda: ops.linear(x, prepared, None), lambda: _exactly(x, weight), num_bytes, _work(x, weight)
        )

    yield [plain(weight) for weight in weights]
    prepared = ops.prepare_gate_up(gated)

    def want() -> Tensor:
        gate, up = _exactly(x, gated).chunk(2, dim=1)
        return torch.nn.functional.silu(gate) * up

    num_bytes = x.dtype.itemsize * (x.numel() + gated.numel() + x.shape[0] * gated.shape[0] // 2)
    name = f"gate_up_silu, {x.shape[0]} rows"
    yield [Case(name, lambda: ops.gate_up_silu(x, prepared), want, num_bytes, _work(x, gated))]


def _tree(ops: Ops, x: Tensor, weight: Tensor) -> Iterator[list[Case]]:
    prepared = ops.prepare_tree_linear(weight, 2)
    num_bytes = x.dtype.itemsize * (x.numel() + weight.numel()) + 4 * x.shape[0] * weight.shape[0]
    name = f"linear_tree, {x.shape[0]} rows"
    yield [Case(name, lambda: ops.linear_tree(x, prepared), lambda: _exactly(x, weight), num_bytes, _work(x, weight))]


def _exactly(x: Tensor, weight: Tensor) -> Tensor:
    return x[:64].double() @ weight.double().T


def _work(x: Tensor, weight: Tensor) -> int:
    return 2 * x.shape[0] * weight.numel()


def _rotary(ops: Ops, sizes: Sizes, qkv: Tensor) -> Case:
    rows, dim, device = qkv.shape[0], sizes.head_dim, qkv.device
    caches = [
        torch.zeros(1 + rows // BLOCK + 1, sizes.kv_heads, BLOCK, dim, dtype=qkv.dtype, device=device) for _ in range(2)
    ]
    positions = torch.arange(rows, dtype=torch.int32, device=device)
    angles = torch.rand(rows, dim // 2, device=device) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    slots = positions + BLOCK

    def want() -> Tensor:
        first, second = qkv.view(rows, -1, dim)[:, : sizes.heads].double().chunk(2, dim=2)
        cos, sin = cos_sin.double()[:, None].chunk(2, dim=2)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=2)

    num_bytes = 2 * qkv.numel() * qkv.dtype.itemsize + 4 * cos_sin.numel()
    return Case(
        "rotary_and_cache", lambda: ops.rotary_and_cache(qkv, positions, cos_sin, slots, *caches), want, num_bytes
    )


def _sampling(ops: Ops, logits: Tensor) -> Case:
    rows, device = logits.shape[0], logits.device

    def column(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((rows,), value, dtype=dtype, device=device)

    f32, i32 = torch.float32, torch.int32
    columns = (
        column(0.6, f32), column(50, i32), column(0.9, f32), column(0.0, f32),
        torch.arange(rows, device=device), column(0, i32), column(7, i32),
    )  # fmt: skip
    name = f"sample, {rows} rows, top-k and top-p"
    return Case(name, lambda: ops.sample(logits, *columns), lambda: sample(logits, *columns), 4 * logits.numel())
