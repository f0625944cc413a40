"""The interface of a rank's device, beside what torch does alike for all.

A type of device is a file here, which `pick` knows. Its kernels are a backend of `ops`, and what
its ranks exchange by is in `parallel/groups`.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

Replay = Callable[[], Tensor]  # computes again from what the buffers hold, into the same tensor each time
Capture = Callable[[Callable[[], Tensor]], Replay]


class Event(Protocol):
    """Marks all work launched in a stream before it."""

    def synchronize(self) -> None:
        """Wait until that work is done."""


class SideStream(Protocol):
    """Work beside the stream of the steps."""

    def launch(self, work: Callable[[], None]) -> Any:
        """Do the work after all that was launched before, here or in the stream of the steps;
        returns a mark behind it.
        """

    def wait(self, mark: Any) -> None:
        """Nothing that is launched in the stream of the steps from now on begins before the
        mark.
        """

    def finish(self) -> None:
        """Wait, in this thread, until all that was launched here is done."""


class Memory(Protocol):
    """The device's own, in bytes."""

    def free_and_total(self) -> tuple[int, int]: ...

    def allocated(self) -> int:
        """By tensors of this process."""

    def reserved(self) -> int:
        """By this process, tensors or not."""

    def release(self) -> None:
        """Give back what is reserved and not allocated."""

    def peak(self, work: Callable[[], object]) -> int:
        """How much more was allocated during the work, at most, than before it."""


class Device(Protocol):
    """This process' device."""

    torch_device: torch.device
    is_asynchronous: bool  # whether what is launched may still run when the launch returns
    graphs_name: str
    graphs_hold_torch: bool  # whether graphs hold what torch itself computes, or kernels of `ops` alone

    @property
    def name(self) -> str:
        """For people."""

    @property
    def memory(self) -> Memory | None:
        """None: it is the host's, which has other users."""

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Cache memory. Raises torch.OutOfMemoryError."""

    def host_zeros(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8 of host memory that the device reads and writes on its own; num_bytes >
        0.
        """

    def capture(self) -> Capture:
        """What captures graphs. compute() has run before: its kernels are compiled and its
        communicators made. Raises RuntimeError where something cannot be captured.
        """

    def side_stream(self) -> SideStream: ...

    def record_event(self) -> Event:
        """In the current stream."""

    def synchronize(self) -> None:
        """Wait for all that was launched."""
