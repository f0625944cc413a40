"""How long blocks keep what is in them, and how long nobody finds it."""

import time
from collections import deque
from typing import NamedTuple

NUM_WATCHED = 256  # blocks
NUM_KEPT = 4096  # times that nobody has taken yet


class Lives(NamedTuple):
    """Seconds: from allocation to eviction, from when it was last found (or allocated) to
    eviction, and between two such times."""

    lifetimes: list[float]
    idle_times: list[float]
    reuse_gaps: list[float]


class BlockLives:
    """Watches one of `stride` blocks, which stand for all: any block may be the next to be reused.
    An eviction is the end of a content that could still be found.
    """

    def __init__(self, num_blocks: int) -> None:
        self.stride = max(1, num_blocks // NUM_WATCHED)
        self._allocated: dict[int, float] = {}  # by block, seconds of time.monotonic()
        self._used: dict[int, float] = {}
        self._lifetimes, self._idle_times, self._reuse_gaps = (deque[float](maxlen=NUM_KEPT) for _ in range(3))

    def allocated(self, block: int, *, evicts: bool) -> None:
        """A watched block gets a new content; whether its old one could be found."""
        now = time.monotonic()
        if evicts:
            self._lifetimes.append(now - self._allocated[block])
            self._idle_times.append(now - self._used[block])
        self._allocated[block] = self._used[block] = now

    def found(self, block: int) -> None:
        """Any block's content is used by a request that has found it."""
        if block % self.stride == 0:
            now = time.monotonic()
            self._reuse_gaps.append(now - self._used[block])
            self._used[block] = now

    def take(self) -> Lives | None:
        """What has come to pass since the last call; None for nothing."""
        if not (self._lifetimes or self._reuse_gaps):
            return None
        told = Lives(list(self._lifetimes), list(self._idle_times), list(self._reuse_gaps))
        for times in (self._lifetimes, self._idle_times, self._reuse_gaps):
            times.clear()
        return told
