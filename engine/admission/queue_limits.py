"""Limits of an engine's queue, in sequences and in prompt tokens. A request is as many sequences as
it has choices (`n`, `best_of`) or beams: each takes a place.
"""

import math
import threading
from dataclasses import dataclass
from typing import NamedTuple

from engine.config import EngineConfig
from engine.errors import Overloaded
from engine.records.stats import EngineStats
from engine.request import Request


class Load(NamedTuple):
    """A number of sequences, and of the tokens of their requests' prompts; infinite as a limit that
    is off.
    """

    num_seqs: float
    num_tokens: float

    def __add__(self, other: object) -> "Load":
        assert isinstance(other, Load)
        return Load(self.num_seqs + other.num_seqs, self.num_tokens + other.num_tokens)

    def __sub__(self, other: "Load") -> "Load":
        return Load(self.num_seqs - other.num_seqs, self.num_tokens - other.num_tokens)


NOTHING = Load(0, 0)


def load_of(request: Request, num_tokens: int | None = None) -> Load:
    """What a request adds to a queue; its prompt's tokens by estimate, if they are not known."""
    return Load(request.params.num_samples, request.estimated_tokens if num_tokens is None else num_tokens)


class Room(NamedTuple):
    """That is left in queues that are nearly full."""

    num_requests: float
    seconds: float  # in which the queues are expected to drain
    limit: str = "max_num_queued_reqs"  # that leaves no more


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """One engine's.

    By default as many sequences may wait as may run at once, and their prompts may fill the cache
    once. So the last one of a full queue waits about as long as those before it take to answer. A
    longer queue answers no more requests a second: it answers them later, many of them to clients
    that have left.
    """

    max_waiting: Load
    num_places: int  # sequences that may run at once
    block_size: int  # tokens

    @classmethod
    def of(cls, config: EngineConfig, stats: EngineStats) -> "QueueLimits":
        """`stats`: of the started engine, whose cache may have become smaller with a restart."""
        num_seqs, num_tokens = config.max_num_queued_reqs, config.max_num_queued_tokens
        if num_seqs is None:
            num_seqs = config.max_num_seqs
        if num_tokens is None:
            num_tokens = stats.num_gpu_blocks * config.block_size
        return cls(Load(num_seqs or math.inf, num_tokens or math.inf), config.max_num_seqs, config.block_size)

    def free(self, stats: EngineStats) -> Load:
        """What is there for those that wait for a first token: the places and the cache that are
        empty, and not for those that return, unless the cache is what they wait for. What they are
        given may still take a while: a step computes only so much of their prompts.
        """
        free = self._free(stats)
        num_seqs = max(free.num_seqs - stats.num_seqs_returning, 0)
        return Load(num_seqs, max(free.num_tokens - stats.num_returning_tokens, 0))

    def num_queued(self, stats: EngineStats) -> float:
        """Sequences, those that return too, that no place is free for."""
        return max(stats.num_seqs_waiting - self._free(stats).num_seqs, 0)

    def _free(self, stats: EngineStats) -> Load:
        num_tokens = stats.num_free_gpu_blocks * self.block_size
        if stats.num_requests_swapped or stats.num_waiting_tokens > num_tokens:
            return NOTHING
        return Load(max(self.num_places - stats.num_seqs_running, 0), num_tokens)


def waiting_load(stats: EngineStats) -> Load:
    """What waits for its first token. What has had one returns, after a loss or a preemption: it
    was let in before.
    """
    num_seqs = stats.num_seqs_waiting - stats.num_seqs_returning
    return Load(num_seqs, stats.num_waiting_tokens - stats.num_returning_tokens)


def room_for(num_seqs: float, max_waiting: Load, free: Load) -> Load:
    """For so many sequences, those that find a place counted in. Free cache is there for these
    alone: of the tokens, those without a place have their part.
    """
    room = max_waiting + free
    num_placeless = num_seqs - free.num_seqs
    if num_placeless <= 0:
        return room
    return Load(room.num_seqs, min(room.num_tokens, max_waiting.num_tokens * num_seqs / num_placeless))


def check_room(room: Load, waiting: Load, more: Load) -> None:
    """Raises Overloaded if `more` has no room beside what waits. Where nothing does, any request
    may.
    """
    if waiting.num_seqs == 0:
        return
    if waiting.num_seqs + more.num_seqs > room.num_seqs:
        message = f"{waiting.num_seqs:.0f} sequences wait already (max_num_queued_reqs)"
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

    def check(self, limits: QueueLimits, stats: EngineStats, more: Load) -> None:
        """Raises Overloaded if there is no room for it."""
        waiting = self._load + waiting_load(stats)
        room = room_for((waiting + more).num_seqs, limits.max_waiting, limits.free(stats))
        check_room(room, waiting, more)

    def enter(self, limits: QueueLimits | None, stats: EngineStats, more: Load) -> None:
        """Let it in; raises Overloaded unless it has no limits."""
        with self._lock:
            if limits is not None:
                self.check(limits, stats, more)
            self._load += more

    def queued(self, load: Load) -> None:
        """It is in the engine's queue, or has ended."""
        self._queued += load

    def counted(self) -> None:
        """What is queued is in the engine's stats."""
        with self._lock:
            self._load -= self._queued
        self._queued = NOTHING
