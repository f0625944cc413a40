"""What `compiled` compiles of weights that were published quantized."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from ops import kernels
from ops.kernels.matmul.linear import TreeWeight
from ops.kernels.matmul.moe import Experts
from ops.kernels.matmul.published import CodedWeight
from ops.kernels.matmul.stored import Stored
from ops.published import PublishedKind, PublishedWeight

BF16, FLOAT32 = torch.bfloat16, torch.float32
KINDS: tuple[tuple[str, PublishedKind, bool], ...] = (
    ("awq", "int4", True),
    ("gptq4", "int4", False),
    ("gptq8", "int8", False),
    ("float8", "fp8", False),
    ("w8a8", "w8a8", False),
)


def published_cases(arch: int, *, every: bool, names: tuple[str, ...] | None = None) -> Iterator[str]:
    """Calls what is compiled; yields its description after each call. names: of KINDS, or all."""
    for name, kind, has_zeros in KINDS:
        if (kind == "fp8" and arch < 89) or (names is not None and name not in names):
            continue
        for num_rows in (1, 300):
            yield from _linears(f"bf16 896, {num_rows} rows {name}", num_rows, kind, has_zeros, every=every)
    if every:
        yield from _experts()


def _linears(name: str, num_rows: int, kind: PublishedKind, has_zeros: bool, *, every: bool) -> Iterator[str]:
    x = torch.empty(num_rows, 896, dtype=BF16, device="meta")
    kernels.gate_up_silu(x, _weight(kernels.prepare_gate_up(_published(2 * 512, 896, kind, has_zeros))))
    yield f"gate_up {name}"
    if not every:
        return
    bias = torch.empty(512, dtype=BF16, device="meta")
    kernels.linear(x, _weight(kernels.prepare_linear(_published(512, 896, kind, has_zeros))), bias)
    yield f"linear {name}"
    tree = kernels.prepare_tree_linear(_published(512, 896, kind, has_zeros), 2)
    kernels.linear_tree(x, TreeWeight(_weight(tree.weight), 2))
    yield f"tree {name}"


def _experts() -> Iterator[str]:
    for num_rows in (16, 300):
        pairs = [(_published(2 * 256, 512, "int4", True), _published(512, 256, "int4", True)) for _ in range(8)]
        made = kernels.prepare_experts(pairs, 0, 4)
        experts = Experts(_weight(made.gate_up), _weight(made.down), made.count, made.first, made.num_leaves)
        ids, weights = kernels.route(torch.empty(num_rows, 8, dtype=FLOAT32, device="meta"), 2, True)
        kernels.experts_tree(torch.empty(num_rows, 512, dtype=BF16, device="meta"), ids, weights, experts)
        yield f"experts 256, {num_rows} rows awq"


def _published(num_out: int, num_in: int, kind: PublishedKind, has_zeros: bool) -> PublishedWeight:
    whole = kind == "w8a8"
    groups = torch.zeros(num_in, dtype=torch.int32) if whole else (torch.arange(num_in) // 128).int()
    num_groups = int(groups.max()) + 1
    middle = 8 if kind == "int4" else 128
    zeros = None if kind == "fp8" else torch.full((num_out, num_groups), middle - has_zeros).short()
    codes = torch.zeros(num_out, num_in, dtype=torch.uint8)
    scales = torch.ones(num_out, num_groups)
    return PublishedWeight(kind, BF16, codes, zeros, scales, groups, together=0 if whole else 128)


def _weight(weight: Stored) -> CodedWeight:
    """On the device whose tensors have no numbers."""
    assert isinstance(weight, CodedWeight)
    codes, scales = weight.codes.to("meta"), weight.scales.to("meta")
    zeros = None if weight.zeros is None else weight.zeros.to("meta")
    return replace(weight, codes=codes, scales=scales, zeros=zeros)
