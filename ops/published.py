"""A weight that was quantized before its checkpoint was published, as a reader hands it to the
ops.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

# int4, int8: integers. fp8: float8 (e4m3). w8a8: 8-bit integers, whose inputs are rounded likewise.
PublishedKind = Literal["int4", "int8", "fp8", "w8a8"]


@dataclass(frozen=True, slots=True)
class PublishedWeight:
    """Number [o, i] is (codes[o, i] - zeros[o, g]) * scales[o, g], in float32, where g is
    groups[i].

    The groups of neighbouring inputs need not be neighbours (act-order).
    """

    kind: PublishedKind
    dtype: torch.dtype  # of the inputs that it is multiplied with
    codes: Tensor  # [out, in] uint8; the bits of a float8 number if kind is fp8
    zeros: Tensor | None  # [out, G] int16; None if kind is fp8
    scales: Tensor  # [out, G] float32
    groups: Tensor  # [in] int32, below G
    input_scale: float | None = None  # of w8a8: all inputs'; None: one is computed for each row and leaf
    # So many neighbours are in one group, from the linear's first input on, whichever of its inputs
    # are here. 0: all are. None: neighbours may be in different groups.
    together: int | None = None

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    def to(self, device: torch.device) -> "PublishedWeight":
        zeros = None if self.zeros is None else self.zeros.to(device)
        codes, scales, groups = (each.to(device) for each in (self.codes, self.scales, self.groups))
        return replace(self, codes=codes, zeros=zeros, scales=scales, groups=groups)

    def columns(self, part: slice) -> "PublishedWeight":
        """The same for some of the inputs."""
        return replace(self, codes=self.codes[:, part].contiguous(), groups=self.groups[part].contiguous())

    def numbers(self) -> Tensor:
        """What it stands for, [out, in] float32."""
        each = self.groups.long()
        if self.zeros is None:
            return self.codes.view(torch.float8_e4m3fn).float() * self.scales[:, each]
        return self.differences() * self.scales[:, each]

    def differences(self) -> Tensor:
        """Codes less zero points, [out, in] float32: integers of at most nine bits."""
        assert self.zeros is not None, "float8 has no zero points"
        return self.codes.float() - self.zeros.float()[:, self.groups.long()]


def cat(parts: Sequence[PublishedWeight]) -> PublishedWeight:
    """Weights that read the same inputs, one's outputs after the other's.

    Inputs are in one group where they are in one group of each part. Raises ValueError.
    """
    first = parts[0]
    for part in parts[1:]:
        if (part.kind, part.input_scale, part.together) != (first.kind, first.input_scale, first.together):
            raise ValueError("weights that are multiplied together are quantized differently")
    groups, combined = torch.stack([part.groups for part in parts]).unique(dim=1, return_inverse=True)
    zeros = [part.zeros[:, of.long()] for part, of in zip(parts, groups, strict=True) if part.zeros is not None]
    return PublishedWeight(
        kind=first.kind,
        dtype=first.dtype,
        codes=torch.cat([part.codes for part in parts]),
        zeros=torch.cat(zeros) if zeros else None,
        scales=torch.cat([part.scales[:, of.long()] for part, of in zip(parts, groups, strict=True)]),
        groups=combined.int(),
        input_scale=first.input_scale,
        together=first.together,
    )
