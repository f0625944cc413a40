"""How large a program's tile of a product is, and how much of it is under way: none of that changes
an element's bits, so that it follows what a device was measured to do fastest.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ops.kernels.device import HOPPER, capability, num_processors, shared_bytes
from ops.kernels.matmul.stored import CODES, Operands

Options = dict[str, int]
FEW_ROWS = tl.constexpr(64)
MOST_STAGES = 12  # tiles under way, which are what a processor can ask for at once
OTHER_SHARED = 8 << 10  # bytes of a program beside its tiles, at most
# Of more than FEW_ROWS on Hopper, from the widest to that with the most programs: a tile, how many
# programs a processor has at least if it is taken, and the least rows.
MANY = (
    ((256, 128, 64, 4, 8), 2.0, 0),
    ((128, 128, 64, 3, 8), 1.0, 0),
    ((64, 256, 64, 4, 4), 0.5, 129),
    ((64, 128, 64, 6, 4), 0.5, 0),
    ((64, 64, 128, 4, 4), 0.5, 0),
    ((64, 32, 128, 4, 4), 0.0, 0),
)


def launch_options(
    given: Operands, dtype: torch.dtype, num_out: int, num_leaves: int, is_gated: bool
) -> tuple[int, Options]:
    """The number of tiles, and each one's size. dtype: the weight's."""
    num_rows, device = given.x.shape[0], given.x.device
    compute, processors = capability(device), num_processors(device)
    if compute[0] == HOPPER and dtype != torch.float32 and (given.kind == "plain" or given.kind in CODES):
        sizes = num_rows, num_out, num_leaves, is_gated, processors
        options = (
            plain_options(*sizes) if given.kind == "plain" else codes_options(*sizes, _reads_little(given), given.piece)
        )
        return _count(options, num_rows, num_out), options
    options = linear_options(dtype, given.kind, num_rows, is_gated)
    num_tiles = _count(options, num_rows, num_out)
    is_plain = given.kind == "plain" and dtype != torch.float32
    if is_plain and 2 * num_tiles * num_leaves <= processors:
        options["STAGES"] = deep_stages(options, given.leaf, num_rows, is_gated, compute)
    return num_tiles, options


def _count(options: Options, num_rows: int, num_out: int) -> int:
    return -(-num_out // options["OUTS"]) * -(-num_rows // options["ROWS"])


def _tile(outs: int, rows: int, inputs: int, stages: int, num_warps: int) -> Options:
    return {"OUTS": outs, "ROWS": rows, "INPUTS": inputs, "STAGES": stages, "num_warps": num_warps}


def plain_options(num_rows: int, num_out: int, num_leaves: int, is_gated: bool, processors: int) -> Options:
    """On Hopper, of weights of 16 bits."""

    def programs(outs: int, rows: int) -> int:
        return -(-num_out // outs) * -(-num_rows // rows) * num_leaves

    if num_rows <= FEW_ROWS.value:
        num_rows = max(16, triton.next_power_of_2(num_rows))  # few tiles that have to be compiled
        rows = _few(num_rows, num_out, num_leaves, processors)
        if is_gated:
            return _tile(64, rows, 64, 4, 4) if rows > 32 else _tile(64, rows, 128, 3, 4)
        return _tile(64, rows, 128, 6, 4) if programs(64, rows) <= processors else _tile(64, rows, 64, 6, 4)
    if is_gated:
        return _tile(128, 128, 64, 4, 8) if programs(128, 128) >= 2 * processors else _tile(64, 128, 64, 3, 4)
    return next(
        _tile(*tile)
        for tile, share, least_rows in MANY
        if num_rows >= least_rows and programs(*tile[:2]) >= share * processors
    )


def codes_options(
    num_rows: int, num_out: int, num_leaves: int, is_gated: bool, processors: int, reads_little: bool, piece: int
) -> Options:
    """On Hopper, of codes of 4 or 8 bits, of which a program multiplies a piece at once. Fewer rows
    than there are would have codes decoded once more.
    """
    if num_rows <= FEW_ROWS.value:
        rows = max(16, triton.next_power_of_2(num_rows))
        if is_gated:
            return _tile(64, rows, 64, 3 if rows > 32 else 6, 4)
        has_one_each = -(-num_out // 64) * num_leaves <= processors
        return _tile(64, rows, 64, 8 if rows <= 32 and (has_one_each or piece < 128) else 4, 4)
    wide = -(-num_out // 128) * -(-num_rows // 256) * num_leaves
    if reads_little and not is_gated and 2 * wide >= processors:
        return _tile(128, 256, 64, 3, 8)
    return _tile(64, 128, 64, 3, 4)


def _reads_little(given: Operands) -> bool:
    """Whether registers and shared memory suffice for the widest tile: of scales that are in the
    model's dtype, and pieces of up to 64 bytes.
    """
    is_packed = given.scales is not None and given.scales.dtype == torch.int32
    return is_packed and (given.kind == "codes4" or given.piece <= 64)


def _few(num_rows: int, num_out: int, num_leaves: int, processors: int) -> int:
    """A tile's rows, fewer than there are if half of the processors had no program."""
    rows = num_rows
    while rows > 16 and 2 * triton.cdiv(num_out, 64) * triton.cdiv(num_rows, rows) * num_leaves <= processors:
        rows //= 2
    return rows


def linear_options(dtype: torch.dtype, kind: str, num_rows: int, is_gated: bool) -> Options:
    """On every other device, and of other weights. OUTS is what Hopper's tensor cores take at once,
    or twice that; ROWS may be any width.

    INPUTS, which a program multiplies at once (of integers always a piece), are as many for any
    number of rows.
    """
    if dtype == torch.float32 and kind != "fp8":
        return _tile(64, 16, 32, 2, 8 if kind in CODES else 4)
    inputs = 128 if kind == "fp8" else 64
    if kind in CODES:  # whose numbers are in registers, and pieces of up to 128 inputs in shared memory
        return _tile(64, max(16, triton.next_power_of_2(min(num_rows, 64))), inputs, 3, 8)
    if num_rows > FEW_ROWS.value:
        return _tile(64 if is_gated else 128, 128, inputs, 3, 8)
    return _tile(64, max(16, triton.next_power_of_2(num_rows)), inputs, 4 if is_gated else 6, 4)


def deep_stages(options: Options, leaf: int, num_rows: int, is_gated: bool, compute: tuple[int, int]) -> int:
    """How many tiles are under way if most processors have no program, and none has two: for few
    rows, as many as shared memory holds of 16-bit weights. The order of a sum is the same with any.

    Of more rows there are more tiles, so that it would differ from step to step.
    """
    if num_rows > FEW_ROWS.value:
        return options["STAGES"]
    tile = (options["OUTS"] * (2 if is_gated else 1) + options["ROWS"]) * options["INPUTS"] * 2
    room = (shared_bytes(compute) - OTHER_SHARED) // tile
    return max(options["STAGES"], min(MOST_STAGES, room, -(-leaf // options["INPUTS"])))


def described(given: Operands, options: Options, num_leaves: int) -> tuple[Any, Any]:
    """x and a plain weight of 16 bits as boxes that Hopper copies on its own: a thread asks for a
    whole tile. None and None, where they are no such.
    """
    x, weight = given.x, given.codes
    inputs = options["INPUTS"]
    is_aligned = x.shape[1] % 8 == 0 and (num_leaves == 1 or given.leaf % inputs == 0)
    is_box = given.kind == "plain" and x.element_size() == 2 and is_aligned and not _address(x) and not _address(weight)
    if capability(x.device)[0] != HOPPER or not is_box:
        return None, None
    return _boxes(x, options["ROWS"], inputs), _boxes(weight, options["OUTS"], inputs)


def _address(tensor: Tensor) -> int:
    """How far it is from a multiple of 16 bytes; of what has no memory, nothing."""
    return 0 if tensor.is_meta else tensor.data_ptr() % 16


def _boxes(rows: Tensor, height: int, width: int) -> TensorDescriptor:
    return TensorDescriptor(rows, list(rows.shape), list(rows.stride()), [height, width])
