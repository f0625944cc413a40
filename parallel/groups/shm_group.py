"""Collectives between CPU ranks of one machine through shared memory: tens of times faster than a
loopback socket.

The ranks map one file that never has a name, so that nothing stays behind however and whenever they
end: they open it by the descriptor of rank 0. A rank's death and an abort are noticed within a
tenth of a second; a frozen rank at the time limit.
"""

import os
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor

from ops.cpu.library import kernels, library, unavailable_reason
from parallel.errors import GroupError
from parallel.groups.meeting import Meeting

FOLDER = Path("/dev/shm")
_NO_ROOM = -(1 << 31)
_ABORTED = _NO_ROOM + 1


class ShmGroup:
    """A `Group`. Messages go to the next rank only (`send`) and come from the one before, as
    between pipeline stages.
    """

    is_capturable = True

    def __init__(self, rank: int, size: int, file: int, timeout: timedelta) -> None:
        """file: descriptor of the shared file, opened by this rank itself; the group closes it,
        also if this fails.
        """
        self.rank = rank
        self.size = size
        self._milliseconds = int(timeout / timedelta(milliseconds=1))
        self._file = file
        self._kernels = kernels()  # for calls at any time, also while another group's are recorded
        self._memory = self._kernels.squadron_shm_join(file, rank, size)
        if not self._memory:
            os.close(file)
            raise GroupError(f"rank {rank} of {size} cannot map the shared memory")

    def __del__(self) -> None:
        if memory := getattr(self, "_memory", None):
            self._kernels.squadron_shm_leave(memory)
            os.close(self._file)

    def all_reduce(self, x: Tensor) -> Tensor:
        assert x.dtype == torch.float32, f"partial sums are float32, not {x.dtype}"
        assert self.size & (self.size - 1) == 0, f"{self.size} parts make no balanced tree"
        out = torch.empty_like(x)
        pointers = _pointer(x), _pointer(out)
        self._check(library().squadron_shm_all_reduce(self._memory, *pointers, x.numel(), self._milliseconds))
        return out

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        shape = list(x.shape)
        inner = x.element_size() * x[(0,) * dim].numel() if x.numel() else 1
        shape[dim] *= self.size
        out = torch.empty(shape, dtype=x.dtype)
        sizes = x.numel() * x.element_size() // inner, inner
        pointers = _pointer(x), _pointer(out)
        self._check(library().squadron_shm_all_gather(self._memory, *pointers, *sizes, self._milliseconds))
        return out

    def send(self, x: Tensor, dst: int) -> None:
        """Returns at once unless 8 MiB wait for the other side; x may be written to afterwards."""
        assert dst == (self.rank + 1) % self.size, (
            f"rank {self.rank} of {self.size} sends to the next rank, not to {dst}"
        )
        self._check(library().squadron_shm_send(self._memory, _pointer(x), x.nbytes, self._milliseconds))

    def recv(self, shape: tuple[int, ...], dtype: torch.dtype, src: int) -> Tensor:
        assert (src + 1) % self.size == self.rank, f"rank {self.rank} of {self.size} hears the one before, not {src}"
        x = torch.empty(shape, dtype=dtype)
        self._check(library().squadron_shm_receive(self._memory, _pointer(x), x.nbytes, self._milliseconds))
        return x

    def barrier(self) -> None:
        self._check(library().squadron_shm_barrier(self._memory, self._milliseconds))

    def check(self) -> None:
        """Does nothing: a failed collective raises by itself."""

    def abort(self) -> None:
        self._kernels.squadron_shm_abort(self._memory)

    def _check(self, status: int) -> None:
        """Raise GroupError unless the call succeeded (src/api.h documents what it returns)."""
        if status == 0:
            return
        if status == _NO_ROOM:
            reason = f"{FOLDER} is full"
        elif status == _ABORTED:
            reason = "the group was aborted"
        elif status > 0:
            reason = f"rank {status - 1} is gone"
        else:
            reason = f"rank {-status - 1} did not answer within {self._milliseconds / 1000:g} s"
        raise GroupError(f"rank {self.rank} of {self.size}: {reason}")


def join(rank: int, size: int, store: Meeting, timeout: timedelta) -> ShmGroup | None:
    """This rank's group; None on every rank unless all are on one machine and have the kernels and
    room in /dev/shm. Every rank must call it with the same store, used for nothing else.
    """
    store.set(f"machine.{rank}", _machine())
    machines = {store.get(f"machine.{peer}") for peer in range(size)}
    if len(machines) > 1 or machines == {b""} or size > library().squadron_shm_max_ranks():
        return None
    if rank == 0:
        file = _create_file(size)
        store.set("path", "" if file is None else f"/proc/{os.getpid()}/fd/{file}")
        if file is None:
            return None
    else:
        path = store.get("path").decode()
        if not path:
            return None
        file = _open_file(path)
    group = None if file is None else ShmGroup(rank, size, file, timeout)
    store.set(f"joined.{rank}", "" if group is None else "yes")
    return group if all([store.get(f"joined.{peer}") for peer in range(size)]) else None


def _machine() -> str:
    """A string that is equal on ranks that can share memory and see each other's processes, and
    differs on others; empty if this rank cannot share any.
    """
    if unavailable_reason() is not None or not FOLDER.is_dir():
        return ""
    boot, processes = Path("/proc/sys/kernel/random/boot_id").read_text(), Path("/proc/self/ns/pid").readlink()
    return f"{boot} {processes} {FOLDER.stat().st_dev}"


def _create_file(size: int) -> int | None:
    """A new file of zeros without a name, with room for what every collective needs; None if there
    is no room.
    """
    try:
        file = os.open(FOLDER, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError:  # no file system for that
        return None
    try:
        os.ftruncate(file, library().squadron_shm_bytes(size))
        os.posix_fallocate(file, 0, library().squadron_shm_reserved_bytes(size))
    except OSError:
        os.close(file)
        return None
    return file


def _open_file(path: str) -> int | None:
    """None if the system keeps it from other processes. Raises GroupError."""
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        return None
    except OSError as error:
        raise GroupError(f"the memory of rank 0, {path}, cannot be opened: {error.strerror}") from None


def _pointer(x: Tensor) -> int:
    assert x.is_contiguous() and x.device.type == "cpu"
    return x.data_ptr()
