"""Decides whether a gateway takes more requests. The gateway must know this without asking an
engine: in an overload it rejects most requests, so rejections must be quick and cheap.

Two counts of waiting requests are known: that of the engines' reports, a fifth of a second old, and
the gateway's own requests without a token, less those that the reports have at a place already,
whose prompts are being computed. The larger one is used. With several gateways both may be too low
for a moment: a full engine hands the request back, and its gateway keeps it.

What counts are sequences, each of which takes a place: a request has as many as choices or beams.
Before it is read, it counts as one.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from cluster.api.errors import ApiError
from cluster.api.service import NOBODY, Arriving
from cluster.gateway.requests.journals import Journals
from cluster.replica.delta_channel.messages import EngineReport
from engine.admission.queue_limits import NOTHING, Load, Room, check_room, room_for, waiting_load
from engine.errors import Overloaded
from engine.request import NO_KEY, Share

MEASURED_LOOKS = 10  # over about so many of them the drain rate is an average
WAITING_PER_ROOM = 4  # of one key's sequences and tokens; alone it fills four fifths of the queue
RETRY_AFTER = 2.0  # seconds, where nothing is measured yet
LEAST_FINISHED = 4.0  # sequences, for a rate to be known
TOLD_PART = 0.75  # of the queue: if less of it is free, HAProxy is told how much is


@dataclass(frozen=True, slots=True)
class _Fill:
    """What all connected engines reported."""

    waiting: Load  # for a first token
    beginning: Load  # that has places, and no token yet
    queued: float  # sequences of those that no place is free for
    free: Load  # places and cache that nothing waits for
    max_waiting: Load
    capacity: float  # sequences that the engines hold, running and waiting

    def room(self, num_seqs: float) -> Load:
        """For what waits, if it is so many sequences, the free places counted in."""
        return room_for(num_seqs, self.max_waiting, self.free)


class Door:
    """One gateway's. Lives in one event loop."""

    def __init__(self, journals: Journals, reports: Callable[[], list[EngineReport]], max_queue_seconds: float) -> None:
        """`max_queue_seconds`: that a request may be expected to wait; 0: any."""
        self._max_queue_seconds = max_queue_seconds
        self._journals = journals
        self._reports = reports
        self._last: _Fill | None = None  # while no engine is connected, that of the last ones counts
        self._drain = _DrainRate()

    def check_room(
        self,
        more: Load,
        seconds: float | None,
        share: Share = NO_KEY,
        arriving: Arriving = NOBODY,
        *,
        is_let_in: bool = False,
    ) -> None:
        """See `Service.check_room`."""
        fill = self._fill()
        if fill is None:
            return
        own = self._own(fill, arriving.load)
        wait = self._drain.seconds_for(self._num_queued(fill, own))
        waiting = Load(*map(max, fill.waiting, own))
        room = fill.room((waiting + more).num_seqs)
        num_open = self._journals.num_seqs + arriving.load.num_seqs
        if share.key is not None:
            mine = self._journals.waiting.of(share.key) + arriving.of_key
            num_keys = self._journals.waiting.num_keys(share.key)
            left = math.inf if is_let_in else self._left_in_time(fill, own, num_keys)
            left = min((room - waiting).num_seqs, fill.capacity - num_open, left)
            _check_share(more, mine, Load(left, (room - waiting).num_tokens), share.weight, wait)
            # Keys take turns: of no other one, more are served before this request than of its own.
            turns = num_keys * (mine + more).num_seqs / share.weight
            wait = self._drain.seconds_for(min(self._num_queued(fill, own), turns))
        if wait is not None and wait > (seconds or math.inf):
            message = f"the queue takes about {wait:.0f} s, and timeout={seconds:g}"
            raise Overloaded(message, retry_after=wait, limit="timeout")
        if wait is not None and wait > (self._max_queue_seconds or math.inf) and not is_let_in:
            limit = f"max_queue_seconds={self._max_queue_seconds:g}"
            message = f"the queue takes about {wait:.0f} s, and {limit}"
            raise Overloaded(message, retry_after=wait, limit="max_queue_seconds")
        try:
            # Some of its own may have the places by now that were free when they were let in.
            waiting = fill.waiting if is_let_in else waiting
            check_room(fill.room((waiting + more).num_seqs), waiting, more)
            if num_open and num_open + more.num_seqs > fill.capacity:
                message = f"{num_open:.0f} sequences are being computed or wait (max_num_queued_reqs)"
                raise Overloaded(message, limit="max_num_queued_reqs")
        except Overloaded as error:
            error.retry_after = wait
            raise

    def room(self, arriving: Load, *, by_key: bool = False) -> Room | None:
        """See `Service`."""
        fill = self._fill()
        if fill is None:
            return None
        own = self._own(fill, arriving)
        waiting = Load(*map(max, fill.waiting, own))
        num_open = self._journals.num_seqs + arriving.num_seqs
        most, whole = fill.max_waiting.num_seqs, fill.room(waiting.num_seqs)
        left = [(min(whole.num_seqs - waiting.num_seqs, fill.capacity - num_open), "max_num_queued_reqs")]
        if waiting.num_tokens:
            part = (whole.num_tokens - waiting.num_tokens) / waiting.num_tokens
            left.append((part * waiting.num_seqs, "max_num_queued_tokens"))
        num_queued, seconds = self._num_queued(fill, own), self._drain.seconds_for(1)
        if seconds and self._max_queue_seconds and not by_key:
            most_in_time = self._max_queue_seconds / seconds
            most = min(most, most_in_time)
            left.append((most_in_time - num_queued, "max_queue_seconds"))
        room, limit = min(left)
        if math.isinf(room) or room > most * TOLD_PART:
            return None
        return Room(room, RETRY_AFTER if seconds is None else seconds * num_queued, limit)

    def look(self) -> None:
        """Measure how fast the queue drains. To be called about once a second."""
        fill, reports = self._fill(), self._reports()
        finished = {report.replica: report.stats.num_seqs_finished for report in reports}
        if any(report.problem is not None or report.is_frozen for report in reports):
            finished = {}  # what ends meanwhile tells nothing of later
        is_queueing = fill is not None and self._num_queued(fill, self._own(fill, NOTHING)) > 0
        num_running = sum(report.stats.num_seqs_running for report in reports)
        self._drain.look(finished, time.monotonic(), num_running, is_queueing=is_queueing)

    def _own(self, fill: _Fill, arriving: Load) -> Load:
        """What waits of this gateway, for a place or for the cache."""
        return Load(*(max(num, 0) for num in self._journals.waiting.load - fill.beginning)) + arriving

    def _left_in_time(self, fill: _Fill, own: Load, num_keys: int) -> float:
        """Sequences that may come without waiting for too long; `own`: what waits of this gateway.
        There is always so much that each of the keys that wait, and one more, may have its part:
        those of another one, which came before the engine became slower, do not come first.
        """
        seconds = self._drain.seconds_for(1)
        if not seconds or not self._max_queue_seconds:
            return math.inf
        # Less than none queue where places are free.
        num_queued = max(fill.queued or -math.inf, own.num_seqs - fill.free.num_seqs)
        most = self._max_queue_seconds / seconds
        return max(most - num_queued, most / (num_keys + 1) / WAITING_PER_ROOM)

    def _num_queued(self, fill: _Fill, own: Load) -> float:
        """Sequences that no place is free for; `own`: what waits of this gateway."""
        return max(fill.queued, own.num_seqs - fill.free.num_seqs)

    def _fill(self) -> _Fill | None:
        """None before the first report."""
        known = [(report.limits, report.stats) for report in self._reports()]
        limited = [(limits, stats) for limits, stats in known if limits is not None]
        if limited:
            free = sum((limits.free(stats) for limits, stats in limited), NOTHING)
            self._last = _Fill(
                sum((waiting_load(stats) for _, stats in limited), NOTHING),
                sum((Load(stats.num_seqs_beginning, stats.num_beginning_tokens) for _, stats in limited), NOTHING),
                sum(limits.num_queued(stats) for limits, stats in limited),
                free,
                sum((limits.max_waiting for limits, _ in limited), NOTHING),
                sum(limits.num_places + limits.max_waiting.num_seqs for limits, _ in limited),
            )
        return self._last


def _check_share(more: Load, mine: Load, room: Load, weight: float, wait: float | None) -> None:
    """Limits what waits of a key (`mine`) in proportion to the room that is left, so that no key
    fills the queue and a new key finds room. The more keys wait, the less each may have (dynamic
    thresholds: Choudhury and Hahne, 1998). Raises ApiError.
    """
    if not mine.num_seqs:
        return
    after, most = mine + more, WAITING_PER_ROOM * weight
    # A prompt alone may have most of the tokens that are left: what counts is what it leaves.
    left = room.num_tokens - more.num_tokens
    if after.num_seqs > most * room.num_seqs or after.num_tokens > most * left:
        message = (
            f"{mine.num_seqs:.0f} sequences of this API key, with about {mine.num_tokens:.0f} tokens, wait already; "
            "the rest of the queue is for other keys"
        )
        raise ApiError(429, message, code="rate_limit_exceeded", retry_after=wait or RETRY_AFTER)


class _DrainRate:
    """Sequences per second that end while others wait, averaged over the last ten seconds or so in
    which any waited: an idle engine's rate would be below what it can do. Where fewer end in that
    time than run at once, over the time in which as many do: answers that began together end
    together, and then none for as long as they take. Measured again when replicas come and go.
    """

    def __init__(self) -> None:
        self._num_finished = 0.0
        self._seconds = 0.0
        self._was_queueing = False
        self._before: dict[str, int] = {}  # by replica, how many had ended
        self._looked = 0.0

    def look(self, finished: dict[str, int], now: float, num_running: int, *, is_queueing: bool) -> None:
        """`finished`: by replica, how many sequences have ended since its start; empty if any is in
        trouble. `num_running`: how many run now.
        """
        if finished.keys() != self._before.keys():
            self._num_finished = self._seconds = 0.0
        elif is_queueing and self._was_queueing:
            gained = sum(count - self._before[name] for name, count in finished.items())
            keep = 1 - min(1 / MEASURED_LOOKS, gained / max(num_running, 1))
            self._num_finished = self._num_finished * keep + gained
            self._seconds = self._seconds * keep + now - self._looked
        self._before, self._looked, self._was_queueing = finished, now, is_queueing

    def seconds_for(self, num_seqs: float) -> float | None:
        """Until so many have ended; None while it is not known."""
        if self._num_finished < LEAST_FINISHED:
            return None
        return num_seqs * self._seconds / self._num_finished
