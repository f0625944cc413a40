"""A group of ranks that share a GPU: NCCL rejects them, so data goes through host memory. Slow;
made for tests on one GPU.
"""

import torch
from torch import Tensor

from parallel.groups.group import Group


class StagedGroup:
    """A `Group` for tensors on `device`, on top of one for tensors on the CPU."""

    is_capturable = False

    def __init__(self, inner: Group, device: torch.device) -> None:
        self.rank = inner.rank
        self.size = inner.size
        self._inner = inner
        self._device = device

    def all_reduce(self, x: Tensor) -> Tensor:
        return self._inner.all_reduce(x.cpu()).to(self._device)

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return self._inner.all_gather(x.cpu(), dim).to(self._device)

    def send(self, x: Tensor, dst: int) -> None:
        self._inner.send(x.cpu(), dst)

    def recv(self, shape: tuple[int, ...], dtype: torch.dtype, src: int) -> Tensor:
        return self._inner.recv(shape, dtype, src).to(self._device)

    def barrier(self) -> None:
        self._inner.barrier()

    def check(self) -> None:
        self._inner.check()

    def abort(self) -> None:
        self._inner.abort()


def stage(groups: tuple[Group, Group], device: torch.device) -> tuple[Group, Group]:
    """Groups of CPU ranks, for tensors on `device`."""
    tp, pp = (one if one.size == 1 else StagedGroup(one, device) for one in groups)
    return tp, pp
