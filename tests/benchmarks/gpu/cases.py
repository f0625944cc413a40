"""What is measured of each kernel."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import silu

from ops.interface import AttentionMetadata, Ops
from ops.reference import sample
from tests.benchmarks.gpu.case import Case, Make, Sizes, copies_beyond_cache, has_float8, rows_beyond_cache
from tests.benchmarks.gpu.weights import experts_cases, quantized_cases

BLOCK = 16
EPS = 1e-6


def cases(ops: Ops, sizes: Sizes, device: torch.device, dtype: torch.dtype) -> Iterator[Make]:
    def random(*shape: int, of: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, device=device).to(of)

    heads, kv_heads, dim, hidden = sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.hidden
    attention = partial(_attention, ops, sizes, device, dtype)
    caches = [dtype, torch.float8_e4m3fn] if ops.NAME.startswith("triton") and has_float8(device) else [dtype]
    for cache in caches:
        yield partial(attention, cache, 2, sizes.sequences, 1, sizes.context)
    yield partial(attention, dtype, 8, 1, 1, sizes.context)
    yield partial(attention, dtype, 1, 1, sizes.prompt, sizes.prompt)
    for rows in (1, sizes.sequences, sizes.prompt):
        for make, x, shape in (
            (_linear, random(rows, hidden), (hidden, hidden)),
            (_gate_up, random(rows, hidden), (2 * sizes.width, hidden)),
            (_tree, random(rows, sizes.width), (hidden, sizes.width)),
        ):
            weights = [random(*shape) for _ in range(copies_beyond_cache(shape, rows, device))]
            yield partial(_products, make, ops, x, weights)
    yield from _rowwise(ops, random(rows_beyond_cache(hidden, sizes.prompt, device), hidden), random(hidden))
    rows = rows_beyond_cache(2 * sizes.width, sizes.prompt, device)
    yield partial(_silu_and_mul, ops, random(rows, 2 * sizes.width))
    width = (heads + 2 * kv_heads) * dim
    yield partial(_rotary, ops, sizes, random(rows_beyond_cache(width, sizes.prompt, device), width))
    yield partial(_sampling, ops, random(sizes.sequences, sizes.vocab, of=torch.float32) * 2)
    yield from quantized_cases(ops, sizes, device, dtype)
    if ops.EXACT or ops.NAME == "reference":  # the fast backend's experts are the exact one's
        yield from experts_cases(ops, sizes, device, dtype)


def _rowwise(ops: Ops, x: Tensor, weight: Tensor) -> Iterator[Make]:
    zeros = torch.zeros(x.shape, device=x.device)

    def norm() -> Tensor:
        return (x.double() * (x.double().square().mean(1, keepdim=True) + EPS).rsqrt() * weight.double()).to(x.dtype)

    item = x.element_size()
    yield lambda: [Case("rms_norm", lambda: ops.rms_norm(x, weight, EPS), norm, 2 * x.numel() * item)]
    add_bytes = x.numel() * (3 * item + 4)
    yield lambda: [Case("add_rms_norm", lambda: ops.add_rms_norm(zeros, x, weight, EPS), norm, add_bytes)]


def _silu_and_mul(ops: Ops, both: Tensor) -> list[Case]:
    def want() -> Tensor:
        gate, up = both.double().chunk(2, dim=1)
        return silu(gate) * up

    return [Case("silu_and_mul", lambda: ops.silu_and_mul(both), want, 3 * both.nbytes // 2)]


def _attention(
    ops: Ops,
    sizes: Sizes,
    device: torch.device,
    dtype: torch.dtype,
    cache: torch.dtype,
    copies: int,
    sequences: int,
    rows: int,
    context: int,
) -> list[Case]:
    return [_one_attention(ops, sizes, device, dtype, cache, sequences, rows, context) for _ in range(copies)]


def _one_attention(
    ops: Ops,
    sizes: Sizes,
    device: torch.device,
    dtype: torch.dtype,
    cache: torch.dtype,
    sequences: int,
    rows: int,
    context: int,
) -> Case:
    blocks = -(-context // BLOCK)
    shape = (1 + sequences * blocks, sizes.kv_heads, BLOCK, sizes.head_dim)
    keys, values = (torch.randn(shape, device=device).to(cache) for _ in range(2))
    tables = (torch.randperm(sequences * blocks, device=device) + 1).int().view(sequences, blocks)
    query = torch.randn(sequences * rows, sizes.heads, sizes.head_dim, device=device).to(dtype)
    scale = sizes.head_dim**-0.5

    def want() -> Tensor:
        mine = tables[0].long()
        seen_keys, seen_values = (cells[mine].transpose(1, 2).flatten(0, 1)[:context] for cells in (keys, values))
        return attended(query[:rows], seen_keys, seen_values, scale)

    whole = AttentionMetadata(
        query_starts=torch.arange(sequences + 1, dtype=torch.int32, device=device) * rows,
        context_lens=torch.full((sequences,), context, dtype=torch.int32, device=device),
        block_tables=tables,
        slot_mapping=torch.zeros(sequences * rows, dtype=torch.int32, device=device),
        max_query_len=rows,
        max_context_len=context,
    )
    seen = rows * context - rows * (rows - 1) // 2
    return Case(
        name_of_attention(sequences, rows, context) + (", fp8" if cache != dtype else ""),
        lambda: ops.paged_attention(query, keys, values, whole, scale),
        want,
        2 * sequences * context * sizes.kv_heads * sizes.head_dim * cache.itemsize + 2 * query.numel() * dtype.itemsize,
        4 * sequences * seen * sizes.heads * sizes.head_dim,
    )


def name_of_attention(sequences: int, rows: int, context: int) -> str:
    return f"decode attention, {sequences} × {context}" if rows == 1 else f"prefill attention, {rows}"


def attended(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """query [rows, H, D], the last rows of those that keys and values [context, K, D] are of; in
    float64.
    """
    rows, heads, context = query.shape[0], query.shape[1], keys.shape[0]
    group = heads // keys.shape[1]
    hidden = torch.ones(rows, context, dtype=torch.bool, device=query.device).triu(context - rows + 1)
    outputs = []
    for head in range(heads):
        scores = query[:, head].double() @ keys[:, head // group].double().T * scale
        weights = scores.masked_fill_(hidden, -torch.inf).softmax(dim=1)
        outputs.append(weights @ values[:, head // group].double())
    return torch.stack(outputs, dim=1)


def _products(make: Callable[[Ops, Tensor, Tensor], Case], ops: Ops, x: Tensor, weights: list[Tensor]) -> list[Case]:
    return [make(ops, x, weight) for weight in weights]


def _linear(ops: Ops, x: Tensor, weight: Tensor) -> Case:
    prepared = ops.prepare_linear(weight)
    num_bytes = x.nbytes + weight.nbytes + x.itemsize * x.shape[0] * weight.shape[0]
    name = f"linear, {x.shape[0]} rows"
    return Case(name, lambda: ops.linear(x, prepared, None), lambda: _exactly(x, weight), num_bytes, _work(x, weight))


def _gate_up(ops: Ops, x: Tensor, weight: Tensor) -> Case:
    prepared = ops.prepare_gate_up(weight)

    def want() -> Tensor:
        gate, up = _exactly(x, weight).chunk(2, dim=1)
        return silu(gate) * up

    num_bytes = x.nbytes + weight.nbytes + x.itemsize * x.shape[0] * weight.shape[0] // 2
    name = f"gate_up_silu, {x.shape[0]} rows"
    return Case(name, lambda: ops.gate_up_silu(x, prepared), want, num_bytes, _work(x, weight))


def _tree(ops: Ops, x: Tensor, weight: Tensor) -> Case:
    prepared = ops.prepare_tree_linear(weight, 2)
    num_bytes = x.nbytes + weight.nbytes + 4 * x.shape[0] * weight.shape[0]
    name = f"linear_tree, {x.shape[0]} rows"
    return Case(name, lambda: ops.linear_tree(x, prepared), lambda: _exactly(x, weight), num_bytes, _work(x, weight))


def _exactly(x: Tensor, weight: Tensor) -> Tensor:
    return x[:64].double() @ weight.double().T


def _work(x: Tensor, weight: Tensor) -> int:
    return 2 * x.shape[0] * weight.numel()


def _rotary(ops: Ops, sizes: Sizes, qkv: Tensor) -> list[Case]:
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
    return [
        Case("rotary_and_cache", lambda: ops.rotary_and_cache(qkv, positions, cos_sin, slots, *caches), want, num_bytes)
    ]


def _sampling(ops: Ops, logits: Tensor) -> list[Case]:
    rows, device = logits.shape[0], logits.device

    def column(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((rows,), value, dtype=dtype, device=device)

    f32, i32 = torch.float32, torch.int32
    columns = (
        column(0.6, f32), column(50, i32), column(0.9, f32), column(0.0, f32),
        torch.arange(rows, device=device), column(0, i32), column(7, i32),
    )  # fmt: skip
    name = f"sample, {rows} rows, top-k and top-p"
    return [Case(name, lambda: ops.sample(logits, *columns), lambda: sample(logits, *columns), 4 * logits.numel())]
