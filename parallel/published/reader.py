"""From the tensors of a quantized linear to a PublishedWeight: each rank reads its slices alone."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ops.published import PublishedWeight
from parallel.errors import InvalidCheckpoint
from parallel.published.words import AWQ_PLACES, in_each_code, unpack, words_of
from parallel.spec.published.scheme import BLOCK, Scheme

ALL = slice(None)
# (name, index) -> that part of a stored tensor as it is; index None: all of it.
Read = Callable[[str, Any], Tensor]
LinearWeight = Tensor | PublishedWeight  # as it is stored


class LinearReader:
    """Of one linear: its outputs `rows` and its inputs `columns`, both with a start and a stop."""

    def __init__(self, read: Read, scheme: Scheme, linear: str, rows: slice, columns: slice) -> None:
        self._read = read
        self._scheme = scheme
        self._linear = linear
        self._rows = rows
        self._columns = columns

    def weight(self, dtype: torch.dtype) -> PublishedWeight:
        """dtype: of the inputs that it will be multiplied with. Raises InvalidCheckpoint."""
        scheme = self._scheme
        groups = self._groups()
        used, local = groups.unique(return_inverse=True)
        first, last = int(used[0]), int(used[-1]) + 1
        scales = self._scales(slice(first, last))[:, used - first].contiguous()
        if not bool(scales.isfinite().all()):
            raise InvalidCheckpoint(f"{self._linear}: its scales hold NaN or infinity")
        codes = self._codes()
        if scheme.kind == "fp8" and bool(((codes & 0x7F) == 0x7F).any()):
            raise InvalidCheckpoint(f"{self._linear}: its weight holds NaN")
        zeros = None if scheme.kind == "fp8" else self._zeros(slice(first, last))[:, used - first].contiguous()
        together = None if scheme.shuffles else scheme.group_size or 0
        return PublishedWeight(scheme.kind, dtype, codes, zeros, scales, local.int(), self._input_scale(), together)

    def _part(self, name: str, index: Any = None) -> Tensor:
        return self._read(f"{self._linear}.{name}", index)

    def _codes(self) -> Tensor:
        """[out, in] uint8."""
        scheme, rows, columns = self._scheme, self._rows, self._columns
        match scheme.layout:
            case "awq":
                words = self._part("qweight", (columns, words_of(rows, 4)))
                return unpack(words, 4, rows, AWQ_PLACES).T.contiguous()
            case "gptq":
                words = self._part("qweight", (words_of(columns, scheme.bits), rows))
                return unpack(words.T, scheme.bits, columns)
            case "packed":
                words = self._part("weight_packed", (rows, words_of(columns, scheme.bits)))
                return unpack(words, scheme.bits, columns)
            case "int8":
                return self._part("weight", (rows, columns)).contiguous().view(torch.uint8) ^ 128
            case _:
                return self._part("weight", (rows, columns)).contiguous().view(torch.uint8)

    def _groups(self) -> Tensor:
        """Of each input, [in] int64."""
        scheme, columns = self._scheme, self._columns
        inputs = torch.arange(columns.start, columns.stop)
        regular = inputs.new_zeros(inputs.shape) if scheme.group_size is None else inputs // scheme.group_size
        if not scheme.has_order:
            return regular
        name = "g_idx" if scheme.layout == "gptq" else "weight_g_idx"
        found = self._part(name, (columns,)).long()
        if bool((found == -1).all()):
            return regular
        num_groups = self._num_groups()
        if bool(((found < 0) | (found >= num_groups)).any()):
            raise InvalidCheckpoint(f"{self._linear}.{name}: groups are not all from 0 to {num_groups - 1}")
        return found

    def _num_groups(self) -> int:
        name, dim = ("scales", 0) if self._scheme.layout == "gptq" else ("weight_scale", 1)
        return self._part(name).shape[dim]

    def _scales(self, groups: slice) -> Tensor:
        """[out, groups] float32."""
        rows, layout = self._rows, self._scheme.layout
        if layout in ("awq", "gptq"):
            return self._part("scales", (groups, rows)).T.float()
        if layout == "packed":
            return self._part("weight_scale", (rows, groups)).float()
        if layout == "blocks":
            name = "weight_scale" if self._scheme.method == "compressed-tensors" else "weight_scale_inv"
            blocks = slice(rows.start // BLOCK, -(-rows.stop // BLOCK))
            each = torch.arange(rows.start, rows.stop) // BLOCK - blocks.start
            return self._part(name, (blocks, groups)).float()[each]
        scales = self._part("weight_scale").float()
        count = rows.stop - rows.start
        if scales.numel() == 1:
            return scales.reshape(1, 1).expand(count, 1)
        return scales.reshape(scales.shape[0], -1)[rows, groups]

    def _zeros(self, groups: slice) -> Tensor:
        """[out, groups] int16."""
        scheme, rows = self._scheme, self._rows
        if not scheme.has_zeros:
            return torch.full((rows.stop - rows.start, groups.stop - groups.start), 1 << (scheme.bits - 1)).short()
        if scheme.layout == "packed":
            words = self._part("weight_zero_point", (words_of(rows, scheme.bits), groups)).T
        else:
            words = self._part("qzeros", (groups, words_of(rows, scheme.bits)))
        if scheme.zero_offset:
            words = words + in_each_code(scheme.zero_offset, scheme.bits)
        return unpack(words, scheme.bits, rows, AWQ_PLACES if scheme.layout == "awq" else None).short().T.contiguous()

    def _input_scale(self) -> float | None:
        if not self._scheme.input_scale:
            return None
        scale = float(self._part("input_scale").float())
        if not 0.0 < scale < float("inf"):
            raise InvalidCheckpoint(f"{self._linear}.input_scale is {scale}, no positive number")
        return scale
