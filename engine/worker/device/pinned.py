"""Pinned host memory of exactly the requested size: torch's allocator takes up to twice that."""

import ctypes
import logging
import mmap
from typing import Any, Protocol

import torch
from torch import Tensor

logger = logging.getLogger("squadron.worker")


class Runtime(Protocol):
    """Of `torch.cuda.cudart()`; each returns an error, 0 if there is none."""

    def cudaHostRegister(self, address: int, size: int, flags: int) -> Any: ...

    def cudaHostUnregister(self, address: int) -> Any: ...


class RegisteredMemory(mmap.mmap):
    """Pages of zeros, which are pinned for as long as they live."""

    runtime: Runtime | None = None

    def register(self, runtime: Runtime) -> int:
        """The error, 0 if there is none."""
        error = int(runtime.cudaHostRegister(address_of(self), len(self), 0))
        if not error:
            self.runtime = runtime
        return error

    def __del__(self) -> None:
        if self.runtime is not None:
            self.runtime.cudaHostUnregister(address_of(self))


def pinned_zeros(num_bytes: int, runtime: Runtime) -> Tensor:
    """[num_bytes] uint8 that begins at a page; where CUDA pins no pages of ours, by torch's
    allocator, and the log says so.
    """
    memory = RegisteredMemory(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if error := memory.register(runtime):
        logger.warning("cudaHostRegister pins no memory here (error %d): torch's allocator does, of more bytes", error)
        return torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=True)
    return torch.frombuffer(memory, dtype=torch.uint8)


def address_of(memory: mmap.mmap) -> int:
    """Where the pages begin."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
