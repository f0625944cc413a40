"""What graphs read of a step: arrays that lie at the same places of the device's memory in each
step, and come there by one copy.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from engine.worker.device.transfer import ALIGNMENT, pack, unpack, upload

ROOM = 1 << 20  # bytes for arrays of other sizes in each step
NOTHING: Mapping[str, np.ndarray] = MappingProxyType({})


class Page:
    """Of zeros, until the first step writes it."""

    def __init__(self, parts: Mapping[str, tuple[tuple[int, ...], np.dtype]], device: torch.device) -> None:
        """parts: shapes and types of the arrays that graphs read."""
        self._device = device
        blank = {name: np.zeros(shape, dtype) for name, (shape, dtype) in parts.items()}
        size = sum(-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in blank.values())
        self._size = size
        self._memory = torch.zeros(size + (ROOM if device.type != "cpu" else 0), dtype=torch.uint8, device=device)
        self.tensors = unpack(self._memory, blank)

    def write(self, parts: Mapping[str, np.ndarray], more: Mapping[str, np.ndarray] = NOTHING) -> dict[str, Tensor]:
        """parts: all arrays, in the order of `__init__`. Returns `more` on the device, which the
        next step overwrites.
        """
        if self._device.type == "cpu":
            for name, array in parts.items():
                self.tensors[name].numpy()[...] = array
            return upload(more, self._device)
        packed = pack({**parts, **more}, pinned=True)
        if len(packed) > len(self._memory):
            self._memory[: self._size].copy_(packed[: self._size], non_blocking=True)
            return upload(more, self._device)
        self._memory[: len(packed)].copy_(packed, non_blocking=True)
        return unpack(self._memory[self._size :], more)
