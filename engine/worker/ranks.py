"""A rank's view of the engine's ranks: its coordinates, and its groups."""

import threading
from datetime import timedelta

import torch

from parallel.errors import GroupError
from parallel.groups import meeting
from parallel.groups.connect import connect
from parallel.groups.mesh import Mesh
from parallel.groups.pipeline import Stage
from parallel.groups.rejoinable import RejoinableGroup

LOOPBACK = "127.0.0.1"
Store = meeting.Store  # where ranks meet
COLLECTIVE_TIMEOUT = timedelta(minutes=10)


def open_store(host: str) -> meeting.TCPStore:
    """The meeting point of all ranks, on a free port of `host`; rank 0 keeps it as long as it
    lives. It has a `.port`.
    """
    return meeting.open_store(host, 0, is_master=True, timeout=COLLECTIVE_TIMEOUT)


def join_store(host: str, port: int) -> meeting.TCPStore:
    """The meeting point that rank 0 has opened."""
    return meeting.open_store(host, port, is_master=False, timeout=COLLECTIVE_TIMEOUT)


def make_ranks(tensor_parallel_size: int, pipeline_parallel_size: int, rank: int, device: torch.device) -> "Ranks":
    """Rank `rank` of that many, which has not joined the others yet."""
    return Ranks(Mesh(tensor_parallel_size, pipeline_parallel_size), rank, device)


class Ranks:
    """This rank's two groups. One thread's, but for `abort`."""

    def __init__(self, mesh: Mesh, rank: int, device: torch.device) -> None:
        stage_rank, tp_rank = mesh.coordinates(rank)
        self.tp = RejoinableGroup(tp_rank, mesh.tp_size)
        self.pp = RejoinableGroup(stage_rank, mesh.pp_size)
        self.stage = Stage(stage_rank, mesh.pp_size, self.pp)
        self._mesh, self._rank, self._device = mesh, rank, device
        self._aborted = threading.Event()

    @property
    def speaks(self) -> bool:
        """Whether this is the one rank whose output is wanted."""
        return self.stage.is_last and self.tp.rank == 0

    def join(self, store: Store | None, host: str) -> None:
        """Meet the others at `store`, and wait for them; None for a rank alone. `host`: an address
        of this machine that they can reach.
        """
        tp, pp = connect(self._mesh, self._rank, store, self._device, COLLECTIVE_TIMEOUT, host, self._aborted)
        self.tp.join(tp)
        self.pp.join(pp)

    def leave(self) -> None:
        """No collective may be under way here."""
        self.tp.leave()
        self.pp.leave()
        self._aborted.clear()

    def abort(self) -> None:
        """From any thread: make this rank, and all that wait for it, leave their collectives with
        an error.
        """
        self._aborted.set()
        self.tp.abort()
        self.pp.abort()

    def fail(self) -> None:
        """As `abort`, by the thread that has run this rank's collectives: then those between nodes
        do not wait on, either. For CPU ranks.
        """
        self.abort()
        self.tp.leave_if_awaited()
        self.pp.leave_if_awaited()

    def check(self) -> None:
        """Raise GroupError if a collective of the steps so far may have a wrong result."""
        self.tp.check()
        self.pp.check()

    @staticmethod
    def may_have_caused(error: Exception) -> bool:
        """Whether it may be another rank's doing: a collective failed."""
        return isinstance(error, GroupError)
