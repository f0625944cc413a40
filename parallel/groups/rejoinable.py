"""A group that outlives its ranks' processes: layers keep it while ranks part and meet again."""

import torch
from torch import Tensor

from parallel.errors import GroupError
from parallel.groups.group import Group


class RejoinableGroup:
    """A group whose ranks may part and meet again, some of them in other processes: layers keep
    this one all the while.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._group: Group | None = None

    def join(self, group: Group) -> None:
        """Use `group` from now on; the one before is left."""
        assert (group.rank, group.size) == (self.rank, self.size)
        self._group = group

    def leave(self) -> None:
        """Leave the group, so that nobody waits for this rank in it; no collective may be under way
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

    @property
    def is_capturable(self) -> bool:
        return self._joined.is_capturable

    @property
    def _joined(self) -> Group:
        if self._group is None:
            raise GroupError(f"rank {self.rank} of {self.size} has left its group")
        return self._group
