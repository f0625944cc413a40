"""torch.distributed's process groups as a `Group`: gloo between CPU ranks, NCCL between CUDA ranks.

NCCL's collectives are only enqueued by the host, so a lost rank is not noticed until the device is
waited for, and an aborted collective leaves a wrong sum. So an abort is recorded before it is done,
and `check` reads the record after each step: a step that it may have affected is an error. NCCL's
own watchdog ends the process at the time limit without letting the device continue; the process is
then replaced like any lost one.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ops.tree import add_tree
from parallel.errors import GroupError
from parallel.groups.symmetric import SymmetricMemory

# Bytes and tensors that a CPU rank has begun to send and the other side need not have taken. Tokens
# that are returned to the first stage may wait until the next request comes.
_MAX_WAITING, _MAX_SENT = 1 << 20, 32


class TorchGroup:
    """A separate process group, independent of torch's global state."""

    def __init__(
        self, rank: int, size: int, device: torch.device, process_group: Any, memory: SymmetricMemory | None
    ) -> None:
        """memory: for sums that fit into it."""
        self.rank = rank
        self.size = size
        self.device = device
        self.is_capturable = device.type == "cuda"
        self._process_group = process_group
        self._memory = memory
        self._max_waiting = _MAX_WAITING if device.type == "cpu" else 0
        self._sending: deque[tuple[Any, Tensor]] = deque()
        self._is_aborted = False

    def all_reduce(self, x: Tensor) -> Tensor:
        """Without it, an all-gather and the same local tree on every rank: the order of a ring
        would depend on the number of ranks.
        """
        assert x.dtype == torch.float32, f"partial sums are float32, not {x.dtype}"
        if self._memory is None or not self._memory.has_room(x):
            return add_tree(self._gather(x))
        self._refuse_if_aborted()
        return self._memory.all_reduce(x)

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return torch.cat(self._gather(x), dim)

    def send(self, x: Tensor, dst: int) -> None:
        """One transfer may be running while the next step is computed, and between CPUs small ones
        before it; older ones are waited for first.
        """
        while sum(sent.nbytes for _, sent in self._sending) > self._max_waiting or len(self._sending) == _MAX_SENT:
            self._finish(self._sending.popleft()[0])
        self._sending.append((self._start(self._process_group.send, [x], dst, 0), x))

    def recv(self, shape: tuple[int, ...], dtype: torch.dtype, src: int) -> Tensor:
        x = torch.empty(shape, dtype=dtype, device=self.device)
        self._finish(self._start(self._process_group.recv, [x], src, 0))
        return x

    def barrier(self) -> None:
        options = dist.BarrierOptions()
        if self.device.type == "cuda":
            options.device_ids = [self.device.index]  # otherwise NCCL takes the device with the rank's number
        self._finish(self._start(self._process_group.barrier, options))

    def check(self) -> None:
        self._refuse_if_aborted()
        if self._memory is not None and self._memory.is_stopped():
            raise GroupError(f"rank {self.rank} of {self.size}: a rank did not come to a sum within the time limit")

    def abort(self) -> None:
        """NCCL's abort wakes this rank's device only, so each rank must be aborted. gloo has no
        abort that wakes waiters: it waits for a live rank until the time limit.
        """
        self._is_aborted = True
        if self._memory is not None:
            self._memory.stop()
        self._process_group.abort()

    def _gather(self, x: Tensor) -> list[Tensor]:
        parts = x.new_empty((self.size, x.numel()))
        self._finish(self._start(self._process_group._allgather_base, parts.view(-1), x.view(-1)))
        return [part.view(x.shape) for part in parts]

    def _start(self, collective: Callable[..., Any], *arguments: Any) -> Any:
        self._refuse_if_aborted()
        try:
            return collective(*arguments)
        except RuntimeError as error:
            raise self._error(error) from error

    def _finish(self, work: Any) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            raise self._error(error) from error

    def _refuse_if_aborted(self) -> None:
        """An aborted process group would start again, and wait for ranks that do not."""
        if self._is_aborted:
            raise self._error("the group was aborted")

    def _error(self, reason: object) -> GroupError:
        return GroupError(f"rank {self.rank} of {self.size}: {reason}")
