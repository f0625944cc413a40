"""Ranks that share a GPU: NCCL refuses them, so what they exchange goes through host memory. For
tests on one GPU; slow.
"""

import threading
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from parallel import group
from parallel.group import AbortableStore, Group
from parallel.mesh import Mesh

CPU = torch.device("cpu")


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


def connect(
    mesh: Mesh,
    rank: int,
    store: Any,
    device: torch.device,
    timeout: timedelta,
    hostname: str,
    aborted: threading.Event | None = None,
) -> tuple[Group, Group]:
    """As `group.connect`, for ranks that may share a GPU: if any two do, all of them exchange
    through host memory.
    """
    if mesh.size == 1 or device.type != "cuda":
        return group.connect(mesh, rank, store, device, timeout, hostname, aborted)
    gpus = AbortableStore(store, aborted or threading.Event(), timeout).under("gpus")
    gpus.set(str(rank), str(torch.cuda.get_device_properties(device).uuid))
    if len({gpus.get(str(peer)) for peer in range(mesh.size)}) == mesh.size:
        return group.connect(mesh, rank, store, device, timeout, hostname, aborted)
    return stage(group.connect(mesh, rank, store, CPU, timeout, hostname, aborted), device)


def stage(groups: tuple[Group, Group], device: torch.device) -> tuple[Group, Group]:
    """Groups of CPU ranks, for tensors on `device`."""
    tp, pp = (one if one.size == 1 else StagedGroup(one, device) for one in groups)
    return tp, pp
