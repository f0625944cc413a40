"""The host as a device: a launch returns when its work is done."""

import math
import mmap
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from engine.worker.device.device import Capture, Event, SideStream
from ops.cpu.tape import Tapes

HUGE_BYTES = 4 << 20  # of a tensor for which some megabytes more than it uses do not matter


class CpuDevice:
    """Its graphs are tapes of kernel calls."""

    is_asynchronous = False
    graphs_name = "tapes"
    graphs_hold_torch = False
    memory = None
    name = "cpu"

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Becomes real page by page, as blocks are used; begins at a page. Large ones have huge
        pages: blocks lie scattered, and to find a small page for each takes a tenth of attention's
        time.
        """
        num_bytes = math.prod(shape) * dtype.itemsize
        if not num_bytes:
            return torch.zeros(shape, dtype=dtype)
        memory = _map(num_bytes)
        if num_bytes >= HUGE_BYTES:
            with suppress(OSError):  # a system may have none
                memory.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(memory, dtype=dtype).view(shape)

    def host_zeros(self, num_bytes: int) -> Tensor:
        return torch.frombuffer(_map(num_bytes), dtype=torch.uint8)

    def capture(self) -> Capture:
        return Tapes().capture

    def side_stream(self) -> SideStream:
        return NoSideStream()

    def record_event(self) -> Event:
        return Done()

    def synchronize(self) -> None:
        return


class Done:
    """An `Event` that has always passed."""

    def synchronize(self) -> None:
        return


class NoSideStream:
    """Launches where the steps are."""

    def launch(self, work: Callable[[], None]) -> None:
        work()

    def wait(self, mark: Any) -> None:
        return

    def finish(self) -> None:
        return


def _map(num_bytes: int) -> mmap.mmap:
    return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
