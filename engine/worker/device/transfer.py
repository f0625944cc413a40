"""Between the host's arrays and the device's tensors: many in one asynchronous copy through pinned
memory.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 16  # bytes: kernels are recompiled for a pointer that is aligned to less
TORCH_DTYPES = {
    np.dtype(np.bool_): torch.bool,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
}


def upload(arrays: Mapping[str, np.ndarray], device: torch.device) -> dict[str, Tensor]:
    """The arrays as contiguous tensors of the same names; on the CPU they may be the same
    memory.
    """
    if device.type == "cpu":
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    return unpack(pack(arrays, pinned=True).to(device, non_blocking=True), arrays)


def zeros(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """int32. On the CPU, memory that is never written to is never made."""
    if device.type == "cpu":
        return torch.from_numpy(np.zeros(shape, np.int32))
    return torch.zeros(shape, dtype=torch.int32, device=device)


def pack(arrays: Mapping[str, np.ndarray], *, pinned: bool) -> Tensor:
    """The arrays' bytes one after the other, each aligned. Memory of its own: copies of earlier
    ones may still be under way.
    """
    packed = torch.empty(sum(map(_room, arrays.values())), dtype=torch.uint8, pin_memory=pinned)
    target, start = packed.numpy(), 0
    for array in arrays.values():
        target[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        start += _room(array)
    return packed


def unpack(packed: Tensor, arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """What `pack` made of the arrays, wherever it is now, as tensors that share its memory."""
    tensors, start = {}, 0
    for name, array in arrays.items():
        tensors[name] = packed[start : start + array.nbytes].view(TORCH_DTYPES[array.dtype]).view(array.shape)
        start += _room(array)
    return tensors


class Download:
    """Tensors on their way to the host; on the CPU they are there. They must not be written to."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self._joined: Tensor | None = None
        if tensors[0].device.type != "cpu":
            joined = join(tensors)
            self._joined = torch.empty_like(joined, device="cpu", pin_memory=True).copy_(joined, non_blocking=True)

    def arrays(self) -> list[np.ndarray]:
        """Once the stream that was current has come so far."""
        if self._joined is None:
            return [tensor.numpy() for tensor in self._tensors]
        return split(self._joined, self._tensors)


def join(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors' bytes one after the other."""
    parts = [tensor.reshape(-1).view(torch.uint8) for tensor in tensors if tensor.numel()]
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts) if parts else tensors[0].new_empty(0, dtype=torch.uint8)


def split(joined: Tensor, tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """What `join` made of the tensors, once it is on the host, as arrays that share its memory."""
    data, start = joined.numpy(), 0
    arrays = []
    for tensor in tensors:
        dtype = next(dtype for dtype, of_torch in TORCH_DTYPES.items() if of_torch == tensor.dtype)
        size = prod(tensor.shape) * dtype.itemsize
        arrays.append(data[start : start + size].view(dtype).reshape(tensor.shape))
        start += size
    return arrays


def _room(array: np.ndarray) -> int:
    return -(-array.nbytes // ALIGNMENT) * ALIGNMENT
