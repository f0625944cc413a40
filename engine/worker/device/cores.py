"""A CPU rank's cores: the node's are divided among its ranks, and each is bound to its own where
there are enough.
"""

import os
import socket
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from engine.worker.device.control_groups import CGROUP, OWN, control_groups

_TOPOLOGY = Path("/sys/devices/system/cpu")


class Cores:
    """`num_threads` for the calling thread, which is bound to as many free cores if there are so
    many.

    Binding holds for the threads it starts from then on, too. A core is claimed by a socket's name,
    which is unique on a machine and is released however the rank dies, so that ranks of different
    engines do not share a core while others are idle. If there are more ranks than cores, or
    another engine has them, nothing is bound.
    """

    def __init__(
        self, num_ranks_here: int, num_threads: int | None = None, *, binds: bool = True, namespace: str = "squadron"
    ) -> None:
        """`num_threads`: None for an equal share of the cores that this process may use. Claims are
        made in `namespace`.
        """
        allowed = sorted(os.sched_getaffinity(0), key=lambda core: (*_place(core), core))
        quota = usable_cores()
        share = quota // num_ranks_here
        self.num_threads = num_threads or max(1, share)
        # With only a share of the machine's time, the kernel chooses the cores: other containers
        # would claim the same ones.
        may_bind = binds and quota == len(allowed) and self.num_threads * num_ranks_here <= quota
        claims = _claim(allowed, self.num_threads, namespace) if may_bind else {}
        self.bound = tuple(sorted(claims))
        self._threads = [threading.get_native_id()]
        self._release = weakref.finalize(self, _give_back, list(claims.values()), allowed, self._threads)
        if claims:
            os.sched_setaffinity(0, claims)

    def __str__(self) -> str:
        threads = f"{self.num_threads} thread{'s' if self.num_threads > 1 else ''}"
        if not self.bound:
            return f"{threads} on cores shared with others"
        return f"{threads} on core{'s' if len(self.bound) > 1 else ''} {','.join(map(str, self.bound))}"

    def spread(self, threads: Sequence[int]) -> None:
        """Bind each of the kernels' threads, system's ids, to a core of its own of those that are
        bound.

        Else the kernel puts two of them on one core when another process takes the other, and
        leaves them there: with two threads on two cores, one busy process then costs half of the
        speed and not a quarter. A thread that has to share its core is helped out by the others
        (`ops/cpu/src/threads.cpp`).
        """
        if len(threads) == len(self.bound):
            self._threads[:] = threads
            for thread, core in zip(threads, self.bound, strict=True):
                os.sched_setaffinity(thread, {core})

    @property
    def nice(self) -> str:
        """How willingly this process gives way to others, for people; empty if it does not."""
        return f" at nice {os.nice(0)}" if os.nice(0) > 0 else ""

    def release(self) -> None:
        """Leave them to other ranks, and the calling thread unbound. Idempotent."""
        self._release()


def usable_cores(cgroup: Path = CGROUP, own: Path = OWN) -> int:
    """How many cores' time this process may use, rounded up: all cores, or its container's or
    service's share.
    """
    quotas = filter(None, map(_quota, control_groups("cpu", cgroup, own)))
    return min([len(os.sched_getaffinity(0)), *quotas])


def _place(core: int) -> tuple[int, int]:
    """The package and the physical core: hardware threads of one core are to be neighbours."""
    topology = _TOPOLOGY / f"cpu{core}" / "topology"
    try:
        return int((topology / "physical_package_id").read_text()), int((topology / "core_id").read_text())
    except OSError:
        return 0, core


def _quota(group: Path) -> int | None:
    """How many cores' time a control group has; None where nothing is said."""
    one, two = group / "cpu.max", (group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us")
    try:
        quota, period = (one.read_text() if one.exists() else " ".join(each.read_text() for each in two)).split()
    except OSError:
        return None
    return None if quota in ("max", "-1") else -(-int(quota) // int(period))


def _claim(cores: list[int], wanted: int, namespace: str) -> dict[int, socket.socket]:
    """The first `wanted` that are free; none where fewer are."""
    claims: dict[int, socket.socket] = {}
    for core in cores:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0{namespace}/core/{core}")  # an abstract name: no file
        except OSError:
            claim.close()
            continue
        claims[core] = claim
        if len(claims) == wanted:
            return claims
    _close(list(claims.values()))
    return {}


def _give_back(claims: list[socket.socket], allowed: list[int], threads: list[int]) -> None:
    for thread in set(threads) & set(map(int, os.listdir("/proc/self/task"))) if claims else ():
        with suppress(ProcessLookupError):  # it has ended since
            os.sched_setaffinity(thread, allowed)
    _close(claims)


def _close(claims: list[socket.socket]) -> None:
    for claim in claims:
        claim.close()
