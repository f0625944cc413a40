"""Sums over a node's CUDA ranks in one kernel and in the tree's order, through memory that they map
of each other.

If ranks cannot map each other's memory (several nodes, no peer access, no Triton) it is not used,
and the log says why.
"""

import importlib
import itertools
import logging
import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    ProcessGroup,
    Store,
    _register_process_group,
    _SymmetricMemory,
    _unregister_process_group,
)

from parallel.groups.meeting import Meeting

logger = logging.getLogger(__name__)

ONE_SHOT_BYTES = 256 << 10  # up to here each rank reads everything: one synchronization instead of two, for more bytes
CAPACITY_BYTES = 8 << 20  # larger tensors are limited by bandwidth, and left to NCCL
LOOKS_PER_SECOND = 4_000_000  # checks of a flag, at most: time limits are counted in checks
# torch assumes that ranks share a GPU if each calls its own device 0, as it does if it sees only
# one.
HIDDEN_DEVICES = ("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")
_names = itertools.count()


class SymmetricMemory:
    """This rank's and its peers' buffers."""

    def __init__(self, rank: int, peers: Tensor, stopped: Tensor, timeout: timedelta, memory: Any) -> None:
        """peers [ranks] int64: the buffers' addresses; stopped [1] int32 on the host; memory: the
        objects that own the buffers.
        """
        self._kernels = importlib.import_module("ops.kernels.all_reduce")
        self._rank = rank
        self._peers = peers
        self._stopped = stopped
        self._word = stopped.numpy()  # written from another thread, whose tensors would be of another mode
        self._calls = torch.zeros(self._kernels.PROGRAMS, dtype=torch.int32, device=peers.device)
        self._looks = min(int(timeout.total_seconds() * LOOKS_PER_SECOND), (1 << 31) - 1)
        self._memory = memory

    def has_room(self, x: Tensor) -> bool:
        return x.nbytes <= CAPACITY_BYTES

    def all_reduce(self, x: Tensor) -> Tensor:
        """x float32 -> the ranks' x added as a balanced binary tree; undefined once stopped."""
        result: Tensor = self._kernels.all_reduce(
            x, self._peers, self._calls, self._stopped,
            rank=self._rank, capacity=CAPACITY_BYTES // 4, is_two_shot=x.nbytes > ONE_SHOT_BYTES, looks=self._looks,
        )  # fmt: skip
        return result

    def stop(self) -> None:
        """From any thread: kernels that wait on this rank's device stop waiting."""
        self._word[0] = self._kernels.STOPPED.value

    def is_stopped(self) -> bool:
        """Whether results may be wrong: stop was called, or a rank did not arrive in time."""
        return bool(self._word[0])


class RendezvousStore(Store):
    """The store for torch's rendezvous. torch numbers its keys over a process' life; here numbers
    count from the first key asked for, so that an old process and a new one ask for the same keys.
    Waits as `meeting` does.
    """

    def __init__(self, meeting: Meeting, store: Store) -> None:
        super().__init__()
        self._meeting = meeting
        self._store = store
        self._first: dict[str, int] = {}  # by the part before the number

    def set(self, key: str, value: str | bytes) -> None:
        self._meeting.set(self._renumbered(key), value)

    def get(self, key: str) -> bytes:
        return self._meeting.get(self._renumbered(key))

    def add(self, key: str, amount: int) -> int:
        return int(self._store.add(self._renumbered(key), amount))

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        for key in keys:
            self.get(key)

    def _renumbered(self, key: str) -> str:
        if (parts := re.fullmatch(r"([^/]+)/(\d+)(.*)", key)) is None:
            return key
        name, number = parts[1], int(parts[2])
        return f"{name}/{number - self._first.setdefault(name, number)}{parts[3]}"


def join(
    rank: int, size: int, meeting: Meeting, store: Store, device: torch.device, timeout: timedelta
) -> SymmetricMemory | None:
    """This rank's part, or None on every rank unless all can. Every rank must call it with the same
    stores, used for nothing else.
    """
    meeting.set(f"machine.{rank}", Path("/proc/sys/kernel/random/boot_id").read_text())
    meeting.set(f"reason.{rank}", _unavailable_reason(size, device))
    reasons = [meeting.get(f"reason.{peer}").decode() for peer in range(size)]
    if len({meeting.get(f"machine.{peer}") for peer in range(size)}) > 1:
        reasons.append("they are on several machines")
    if not any(reasons):
        memory, reason = _map(rank, size, meeting, store, device, timeout)
        meeting.set(f"mapped.{rank}", reason)
        reasons = [meeting.get(f"mapped.{peer}").decode() for peer in range(size)]
        if not any(reasons):
            return memory
    if rank == 0:
        logger.warning("the sums of %d ranks go by NCCL alone: %s", size, next(filter(None, reasons)))
    return None


def _unavailable_reason(size: int, device: torch.device) -> str:
    """Why this rank cannot share memory; empty if it may be able to."""
    if device.type != "cuda":
        return f"{device.type} has no memory that ranks map of each other"
    if size not in (2, 4, 8):
        return f"{size} ranks make no balanced tree"
    try:
        importlib.import_module("ops.kernels.all_reduce")
    except ModuleNotFoundError as error:
        return f"{error.name} is not installed"
    return ""


def _map(
    rank: int, size: int, meeting: Meeting, store: Store, device: torch.device, timeout: timedelta
) -> tuple[SymmetricMemory | None, str]:
    """The mapped memory, or why there is none. If a rank fails here, its peers wait as long as
    `meeting` does.
    """
    kernels = importlib.import_module("ops.kernels.all_reduce")
    name: Any = f"squadron.{next(_names)}"  # of this process only; ranks find each other through the store
    num_words = kernels.buffer_size(size, CAPACITY_BYTES // 4)
    os.environ.setdefault(*HIDDEN_DEVICES)
    rendezvous_store = RendezvousStore(meeting, store)
    group = make_known(name, rank, size, rendezvous_store)
    try:
        buffer = _SymmetricMemory.empty_strided_p2p((num_words,), (1,), torch.float32, device, name)
        buffer.zero_()
        torch.cuda.synchronize(device)
        # No rank leaves it before all have their zeros. Its type knows not all that it has.
        handle: Any = _SymmetricMemory.rendezvous(buffer, name)
    except RuntimeError as error:
        return None, str(error).splitlines()[0]
    finally:
        _unregister_process_group(name)
    peers = torch.tensor([pointer + handle.offset for pointer in handle.buffer_ptrs], dtype=torch.int64, device=device)
    stopped = torch.zeros(1, dtype=torch.int32).pin_memory()
    return SymmetricMemory(rank, peers, stopped, timeout, (buffer, handle, rendezvous_store, group)), ""


def make_known(name: Any, rank: int, size: int, store: Store) -> ProcessGroup:
    """Have torch's rendezvous find ranks and store by the name: since torch 2.11 in a process group
    of that name, which needs no backend, before that in what is said of it. torch does not keep the
    group.
    """
    _SymmetricMemory.set_group_info(name, rank, size, store)
    group = ProcessGroup(store, rank, size)
    _register_process_group(name, group)
    return group
