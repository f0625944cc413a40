"""What is done to an engine between two steps, for all of its requests: pauses, other weights,
sleep.

Meanwhile newcomers are held, and begin behind it.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from engine.admission.deadlines import Deadlines, late_message
from engine.core.llm_engine import LLMEngine
from engine.errors import EngineDead, InvalidRequest
from engine.executor import Weights
from engine.request import Arrival

# What becomes of the requests that run: they are ended with what they have; it is waited until they
# have ended; or they stay, and go on behind it from their tokens.
Mode = Literal["abort", "wait", "keep"]
LEVELS = (1, 2)
TAGS = ("weights", "kv_cache")


@dataclass(frozen=True, slots=True)
class _Intermission:
    mode: Mode
    work: Callable[[], Any]
    done: "Future[Any]"


class Intermissions:
    """Of one engine; its thread's alone. `release` is given each arrival that was held."""

    def __init__(self, engine: LLMEngine, release: Callable[[Arrival], None]) -> None:
        self.is_paused = False
        self.sleep_level = 0  # 0: awake
        self.num_held_seqs = 0  # of the requests that are kept for later
        self.num_held_tokens = 0  # of their prompts
        self._asleep: set[str] = set()  # of TAGS
        self._engine = engine
        self._release = release
        self._waiting: deque[_Intermission] = deque()
        self._held: deque[Arrival] = deque()
        self._deadlines = Deadlines[str]()  # of those that are held, by id

    def begin_asleep(self, level: int) -> None:
        """The engine is just made, and starts with `wake_up`."""
        self._engine.begin_asleep()
        self.sleep_level, self._asleep = level, set(TAGS)

    def holds(self, arrival: Arrival) -> bool:
        """Whether the request is kept for later. One that another engine has begun is let in as
        long as this one has not changed, since it may have to end with what it has begun with.
        """
        if not self._are_on or (not self._engine.is_frozen and any(arrival.request.resume.output_ids)):
            return False
        self._held.append(arrival)
        self._count(arrival, 1)
        if arrival.request.timeout is not None:
            self._deadlines.add(arrival.request.id, arrival.time + arrival.request.timeout)
        return True

    def drop(self, request_id: str) -> Arrival | None:
        """A request that was held, and is not wanted any more."""
        for arrival in self._held:
            if arrival.request.id == request_id:
                self._held.remove(arrival)
                self._forget(arrival)
                return arrival
        return None

    def take_late(self) -> list[tuple[Arrival, str]]:
        """Those that were held and whose timeout has passed, each with its error."""
        dropped = [self.drop(request_id) for request_id in self._deadlines.passed(time.monotonic())]
        return [(arrival, late_message(arrival.request)) for arrival in dropped if arrival is not None]

    def seconds_left(self) -> float:
        """Until a request has to end although no step is run: infinite if none has a timeout."""
        first = min(self._deadlines.first, self._engine.requests.deadlines.first)
        return max(first - time.monotonic(), 0.0)

    def pause(self, mode: Mode, done: "Future[None]") -> None:
        """Until `resume`."""
        self._add(_Intermission(mode, self._pause, done))

    def resume(self) -> None:
        """Pauses that still wait for requests are over before they begin."""
        self.is_paused = False
        for one in [one for one in self._waiting if one.work == self._pause]:
            self._waiting.remove(one)
            if one.done.set_running_or_notify_cancel():
                one.done.set_result(None)

    def update(
        self, weights: Weights | None, mode: Mode, changed: Callable[[], None] | None, done: "Future[None]"
    ) -> None:
        """See `Epochs.change_weights`; `changed` is called after it."""
        self._add(_Intermission(mode, partial(self._update, weights, changed), done))

    def sleep(self, level: int, mode: Mode, done: "Future[None]") -> None:
        """Until `wake_up`."""
        self._add(_Intermission(mode, partial(self._sleep, level), done))

    def wake_up(self, tags: tuple[str, ...], awake: Callable[[], None] | None, done: "Future[None]") -> None:
        """The engine is awake when all of TAGS are; until then it stays as it is. `awake` is called
        when it is.
        """
        self._add(_Intermission("keep", partial(self._wake_up, tags, awake), done))

    def proceed(self) -> None:
        """Between two steps: do what the requests are ready for."""
        while self._waiting and self._is_ready(self._waiting[0].mode):
            one = self._waiting.popleft()
            self._engine.is_frozen = True
            _answer(one, self._engine.dead)
            self._engine.is_frozen = self.is_paused or bool(self.sleep_level)
        self._engine.is_frozen = self.is_paused or bool(self.sleep_level) or self._is_keeping
        if self._engine.dead is not None or not self._are_on:
            self._engine.is_frozen = False
            while self._held:
                arrival = self._held.popleft()
                self._forget(arrival)
                self._release(arrival)

    def _forget(self, arrival: Arrival) -> None:
        """It is no longer held."""
        self._deadlines.remove(arrival.request.id)
        self._count(arrival, -1)

    def _count(self, arrival: Arrival, change: int) -> None:
        self.num_held_seqs += change * arrival.request.params.num_samples
        self.num_held_tokens += change * len(arrival.prompt_token_ids)

    @property
    def _are_on(self) -> bool:
        return self.is_paused or self.sleep_level > 0 or bool(self._waiting)

    @property
    def _is_keeping(self) -> bool:
        return bool(self._waiting) and self._waiting[0].mode == "keep"

    def _add(self, one: _Intermission) -> None:
        self._waiting.append(one)
        self.proceed()

    def _is_ready(self, mode: Mode) -> bool:
        engine = self._engine
        if engine.dead is not None:
            return True
        if mode == "abort":
            engine.requests.end_all()
        if mode == "keep":
            engine.is_frozen = True
        return engine.is_quiet and (engine.is_frozen or not engine.has_unfinished_requests())

    def _pause(self) -> None:
        self.is_paused = True

    def _update(self, weights: Weights | None, changed: Callable[[], None] | None) -> None:
        try:
            self._engine.epochs.change_weights(weights)
            if changed is not None:
                changed()
        finally:
            if self.sleep_level and self._engine.dead is None:  # it had to wake up for that
                self.sleep_level = 1
                self._engine.epochs.sleep(1)

    def _sleep(self, level: int) -> None:
        if level > self.sleep_level:
            self._engine.epochs.sleep(level)
            self.sleep_level = level
        self._asleep = set(TAGS)

    def _wake_up(self, tags: tuple[str, ...], awake: Callable[[], None] | None) -> None:
        self._asleep -= set(tags)
        if self.sleep_level and not self._asleep:
            self._engine.epochs.wake_up()
            self.sleep_level = 0
            if awake is not None:
                awake()


def check_mode(mode: str) -> None:
    """Raises InvalidRequest."""
    if mode not in get_args(Mode):
        raise InvalidRequest(f"mode={mode!r} is none of {', '.join(get_args(Mode))}", param="mode")


def check_level(level: Any) -> None:
    """Raises InvalidRequest."""
    if level not in LEVELS or isinstance(level, bool):
        raise InvalidRequest(f"level={level!r} is neither 1 nor 2", param="level")


def check_tags(tags: Any) -> tuple[str, ...]:
    """All of them if there are none. Raises InvalidRequest."""
    given = TAGS if tags is None else tuple(tags)
    for tag in given:
        if tag not in TAGS:
            raise InvalidRequest(f"tags has {tag!r}, which is none of {', '.join(TAGS)}", param="tags")
    return given


def _answer(one: _Intermission, dead: str | None) -> None:
    """Do it, whether or not its caller still waits; not on an engine that is `dead`."""
    is_awaited = one.done.set_running_or_notify_cancel()
    try:
        if dead is not None:
            raise EngineDead(dead)
        one.work()
    except Exception as error:
        if is_awaited:
            one.done.set_exception(error)
        return
    if is_awaited:
        one.done.set_result(None)
