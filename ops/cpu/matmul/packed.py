"""A weight in the kernels' layout, and the memory that they all lie in."""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from ops.cpu.arena import Arena

arena = Arena()


class Description(ctypes.Structure):
    """PackedWeight of src/linear.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("out_features", ctypes.c_int64),
        ("in_features", ctypes.c_int64),
        ("leaves", ctypes.c_int64),
        ("dtype", ctypes.c_int32),
        ("gated", ctypes.c_int32),
        ("codes", ctypes.c_int32),
        ("runs", ctypes.c_void_p),
        ("leaf_runs", ctypes.c_void_p),
        ("leaf_offsets", ctypes.c_void_p),
    )


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight in the kernels' layout; the one it was made from may be freed."""

    dtype: torch.dtype
    out_features: int
    in_features: int
    num_leaves: int
    padding: int  # zeros after each leaf: bfloat16 is multiplied in pairs, and codes are stored in fours
    data: Tensor  # owns the memory
    address: int  # of `description`
    description: Description
    order: Tensor | None = None  # [description.in_features] int32: which input is multiplied, -1 for zero; None: all
    input_scale: float | None = None  # of PRODUCT8: all rows'; None: one is computed for each row and leaf
    tables: tuple[Tensor, ...] = ()  # own what the description points to
    digits_bytes: int = 0  # of a row of inputs, if they are multiplied as digits (src/digits.h)
