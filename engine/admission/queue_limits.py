"""Limits of an engine's queue, in requests and in prompt tokens."""

import math
import threading
from dataclasses import dataclass
from typing import NamedTuple

from engine.config import EngineConfig
from engine.errors import Overloaded
from engine.records.stats import EngineStats


class Load(NamedTuple):
    """A number of requests, and of the tokens of their prompts; infinite as a limit that is off."""

    num_requests: float
    num_tokens: float

    def __add__(self, other: object) -> "Load":
        assert isinstance(other, Load)
        return Load(self.num_requests + other.num_requests, self.num_tokens + other.num_tokens)

    def __sub__(self, other: "Load") -> "Load":
        return Load(self.num_requests - other.num_requests, self.num_tokens - other.num_tokens)


NOTHING = Load(0, 0)


class Room(NamedTuple):
    """That is left in queues that are nearly full."""

    num_requests: float
    seconds: float  # in which the queues are expected to drain


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """One engine's.

    By default as many requests may wait as may run at once, and their prompts may fill the cache
    once. So the last one of a full queue waits about as long as those before it take to answer. A
    longer queue answers no more requests a second: it answers them later, many of them to clients
    that have left.
    """

    max_waiting: Load
    num_places: int  # requests that may run at once
    block_size: int  # tokens

    @classmethod
    def of(cls, config: EngineConfig, stats: EngineStats) -> "QueueLimits":
        """`stats`: of the started engine, whose cache may have become smaller with a restart."""
        num_requests, num_tokens = config.max_num_queued_reqs, config.max_num_queued_tokens
        if num_requests is None:
            num_requests = config.max_num_seqs
        if num_tokens is None:
            num_tokens = stats.num_gpu_blocks * config.block_size
        return cls(Load(num_requests or math.inf, num_tokens or math.inf), config.max_num_seqs, config.block_size)

    def free(self, stats: EngineStats) -> Load:
        """What needs not wait: the empty places and the free cache, if nothing waits for them."""
        if stats.num_requests_waiting or stats.num_requests_swapped:
            return NOTHING
        return Load(max(self.num_places - stats.num_requests_running, 0), stats.num_free_gpu_blocks * self.block_size)


def check_room(room: Load, waiting: Load, more: Load) -> None:
    """Raises Overloaded if `more` has no room beside what waits. Where nothing does, any request
    may.
    """
    if waiting.num_requests == 0:
        return
    if waiting.num_requests + more.num_requests > room.num_requests:
        message = f"{waiting.num_requests:.0f} requests wait already (max_num_queued_reqs)"
        raise Overloaded(message, limit="max_num_queued_reqs")
    if waiting.num_tokens + more.num_tokens > room.num_tokens:
        raise Overloaded(
            f"requests of {waiting.num_tokens:.0f} tokens wait already, and this one has about "
            f"{more.num_tokens:.0f} (max_num_queued_tokens)",
            limit="max_num_queued_tokens",
        )


class Arriving:
    """Requests that an engine has let in, and does not count as waiting yet. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._load = NOTHING
        self._queued = NOTHING  # those of them that will be in the next count

    def check(self, limits: QueueLimits, stats: EngineStats, num_tokens: int) -> None:
        """Raises Overloaded if a request of so many tokens has no room."""
        waiting = self._load + Load(stats.num_requests_waiting, stats.num_waiting_tokens)
        check_room(limits.max_waiting + limits.free(stats), waiting, Load(1, num_tokens))

    def enter(self, limits: QueueLimits | None, stats: EngineStats, num_tokens: int) -> None:
        """Let it in; raises Overloaded unless it has no limits."""
        with self._lock:
            if limits is not None:
                self.check(limits, stats, num_tokens)
            self._load += Load(1, num_tokens)

    def queued(self, num_tokens: int) -> None:
        """It is in the engine's queue, or has ended."""
        self._queued += Load(1, num_tokens)

    def counted(self) -> None:
        """What is queued is in the engine's stats."""
        with self._lock:
            self._load -= self._queued
        self._queued = NOTHING
