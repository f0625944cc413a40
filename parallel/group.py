"""Collectives between ranks, behind one interface.

CPU ranks of one machine meet in shared memory where they can (`shm_group`), else by gloo
(`torch_group`); CUDA ranks by NCCL, and add small things through memory that they map of each other
(`symmetric`). Only these files know torch.distributed.
"""

import socket
import threading
import time
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from parallel import shm_group, torch_group
from parallel.errors import GroupError
from parallel.mesh import Mesh

POLL_SECONDS = 0.002


class Group(Protocol):
    """`size` ranks that call the same collectives in the same order. Tensors are contiguous; a
    failure is a `GroupError`.
    """

    rank: int
    size: int
    is_capturable: bool  # by a graph (of CUDA; on the CPU a tape), once each of the collectives in it has been called

    def all_reduce(self, x: Tensor) -> Tensor:
        """The ranks' x (float32) added as a balanced binary tree in order of rank; the same bits on
        each of them.
        """

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """The ranks' x, one after the other along `dim`."""

    def send(self, x: Tensor, dst: int) -> None:
        """Start to send; returns before the other side has it, so nobody may write to x
        afterwards.
        """

    def recv(self, shape: tuple[int, ...], dtype: torch.dtype, src: int) -> Tensor:
        """What rank `src` sends next; the shape and dtype must be its own."""

    def barrier(self) -> None:
        """Return once every rank has called."""

    def check(self) -> None:
        """To be called when the device has computed what it was asked: GroupError if a collective
        may have given anything.
        """

    def abort(self) -> None:
        """From any thread: whoever waits in a collective of the group gets a GroupError, and it is
        of no more use.

        On any rank where ranks share memory; on this one, at least, where they do not.
        """


class SingleGroup:
    """One rank alone: nothing to exchange."""

    rank = 0
    size = 1
    is_capturable = True

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return x

    def send(self, x: Tensor, dst: int) -> None:
        raise AssertionError("a group of one has nobody to send to")

    def recv(self, shape: tuple[int, ...], dtype: torch.dtype, src: int) -> Tensor:
        raise AssertionError("a group of one has nobody to receive from")

    def barrier(self) -> None:
        return

    def check(self) -> None:
        return

    def abort(self) -> None:
        return


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


def connect(
    mesh: Mesh,
    rank: int,
    store: dist.Store,
    device: torch.device,
    timeout: timedelta,
    hostname: str,
    aborted: threading.Event | None = None,
) -> tuple[Group, Group]:
    """This rank's tensor-parallel and pipeline groups; every rank of the mesh must call it.

    `store` is how the ranks find each other (`open_store`); `hostname` an address of this machine
    that they can reach; `timeout` bounds every collective. Once `aborted` is set, nobody waits here
    any longer for ranks that have not come, where the ranks are to share memory.
    """
    pp_rank, tp_rank = mesh.coordinates(rank)
    abortable = AbortableStore(store, aborted or threading.Event(), timeout)
    tp = _group(f"tp.{pp_rank}", tp_rank, mesh.tp_size, store, abortable, device, timeout, hostname, adds=True)
    pp = _group(f"pp.{tp_rank}", pp_rank, mesh.pp_size, store, abortable, device, timeout, hostname, adds=False)
    return tp, pp


class AbortableStore:
    """A store whose `get` can be got out of: torch's own waits until its time limit."""

    def __init__(self, store: dist.Store, aborted: threading.Event, timeout: timedelta) -> None:
        self._store = store
        self._aborted = aborted
        self._timeout = timeout

    def under(self, prefix: str) -> "AbortableStore":
        return AbortableStore(dist.PrefixStore(prefix, self._store), self._aborted, self._timeout)

    def set(self, key: str, value: str | bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        """Raises GroupError."""
        deadline = time.monotonic() + self._timeout.total_seconds()
        try:
            while not self._store.check([key]):
                if self._aborted.wait(POLL_SECONDS) or time.monotonic() > deadline:
                    raise GroupError(f"not all ranks have come: {key} is not set")
            return bytes(self._store.get(key))
        except GroupError:
            raise
        except RuntimeError as error:
            raise GroupError(f"the meeting point is gone: {error}") from error


def open_store(host: str, port: int, is_master: bool, timeout: timedelta) -> dist.Store:
    """The meeting point at host:port; one rank (rank 0) is its master and keeps it for as long as
    the groups live.
    """
    options = {"timeout": timeout, "wait_for_workers": False}
    try:
        if not is_master:
            return dist.TCPStore(host, port, **options)
        # A listener of our own: the store's would take connections on every address of the machine.
        listener = socket.create_server((host, port))
        port = listener.getsockname()[1]
        return dist.TCPStore(host, port, is_master=True, master_listen_fd=listener.detach(), **options)
    except (RuntimeError, OSError) as error:
        raise GroupError(f"no meeting point at {host}:{port}: {error}") from error


def _group(
    name: str,
    rank: int,
    size: int,
    store: dist.Store,
    abortable: AbortableStore,
    device: torch.device,
    timeout: timedelta,
    hostname: str,
    *,
    adds: bool,
) -> Group:
    if size == 1:
        return SingleGroup()
    if device.type == "cpu":
        shared = shm_group.join(rank, size, abortable.under(f"shm.{name}"), timeout)
        if shared is not None:
            return shared
    meeting, prefixed = abortable.under(f"meeting.{name}"), dist.PrefixStore(name, store)
    return torch_group.join(rank, size, meeting, prefixed, device, timeout, hostname, adds=adds)
