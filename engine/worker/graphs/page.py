"""What graphs read of a step: arrays that lie at the same places of the device's memory in each
step, and come there by one copy.
"""

from collections.abc import Mapping
from math import prod

import numpy as np
import torch

from engine.worker.device.transfer import ALIGNMENT, TORCH_DTYPES

Parts = Mapping[str, tuple[tuple[int, ...], np.dtype]]


class Page:
    """Of zeros, until the first step sends it."""

    def __init__(self, parts: Parts, device: torch.device) -> None:
        """parts: shapes and types of the arrays. A step may send only the first rows of the last
        one.
        """
        self._places = {}
        end = 0
        for name, (shape, dtype) in parts.items():
            self._places[name] = end, shape, dtype
            end += -(-prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        self._memory = torch.zeros(end, dtype=torch.uint8, device=device)
        self._is_host = device.type == "cpu"  # where steps write at once
        self._sent = self._memory
        self.tensors = {
            name: self._memory[start : start + prod(shape) * dtype.itemsize].view(TORCH_DTYPES[dtype]).view(shape)
            for name, (start, shape, dtype) in self._places.items()
        }

    def begin(self, num_rows: int | None = None) -> list[np.ndarray]:
        """The arrays, for a step to write; num_rows: of the last one. Zeros, unless the device is
        the host: there they are what graphs read, as steps before have left it.
        """
        *others, (start, shape, dtype) = self._places.values()
        last = start, shape if num_rows is None else (num_rows, *shape[1:]), dtype
        if not self._is_host:
            # Pinned memory comes from torch, which knows when a copy has been made of it.
            self._sent = torch.empty(start + prod(last[1]) * dtype.itemsize, dtype=torch.uint8, pin_memory=True)
        host = self._sent.numpy()
        if not self._is_host:
            host.fill(0)
        return [
            host[start : start + prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
            for start, shape, dtype in (*others, last)
        ]

    def send(self) -> None:
        """What was written, to the device, behind what was launched before."""
        if not self._is_host:
            self._memory[: len(self._sent)].copy_(self._sent, non_blocking=True)
