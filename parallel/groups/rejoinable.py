"""A group that outlives its ranks' processes: layers keep it while ranks leave and join again."""

import torch
from torch import Tensor

from parallel.errors import GroupError
from parallel.groups.group import Group
from parallel.groups.torch_group import TorchGroup


class RejoinableGroup:
    """A group whose ranks may leave and join again, some of them in other processes; layers keep
    this object.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._group: Group | None = None

    def join(self, group: Group) -> None:
        """Use `group` from now on, instead of the previous one."""
        assert (group.rank, group.size) == (self.rank, self.size)
        self._group = group

    def leave(self) -> None:
        """Leave the group, so that no rank waits for this one; no collective may be running
        here.
        """
        self._group = None

    def all_reduce(self, x: Tensor) -> Tensor:
        return self._joined.all_reduce(x)

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return self._joined.all_gather(x, dim)

    def send(self, x: Tensor, dst: int) -> None:
        self._joined.send(x, dst)

    def recv(self, shape: tuple[int, ...], dtype: torch.dtype, src: int) -> Tensor:
        return self._joined.recv(shape, dtype, src)

    def barrier(self) -> None:
        self._joined.barrier()

    def check(self) -> None:
        self._joined.check()

    def abort(self) -> None:
        group = self._group  # another thread may leave it meanwhile
        if group is not None:
            group.abort()

    def leave_if_awaited(self) -> None:
        """After `abort`, where that does not reach ranks that wait for this one: gloo tells them
        by the connection that ends. No collective may be running here.
        """
        if isinstance(self._group, TorchGroup):
            self.leave()

    @property
    def is_capturable(self) -> bool:
        return self._joined.is_capturable

    @property
    def _joined(self) -> Group:
        if self._group is None:
            raise GroupError(f"rank {self.rank} of {self.size} has left its group")
        return self._group
