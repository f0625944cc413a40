"""Requests that arrive: what is known of one before its body is read, and how many a gateway has
let in that nothing else counts yet. In an overload hundreds are being read at once, and each of
them would find the same room.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from starlette.datastructures import Headers

from engine.admission.queue_limits import NOTHING, Load
from engine.request import BYTES_PER_TOKEN

MAX_DIGITS = 18  # of a length; Python reads no number of thousands of digits


def may_be_refused(headers: Headers) -> bool:
    """Whether a request is new. A stream that broke was let in before."""
    return "last-event-id" not in headers


def estimated_load(headers: Headers, max_model_len: int) -> Load:
    """Of a request, before anything of its body is read; a prompt that exceeds the context is an
    error anyway.
    """
    length = headers.get("content-length", "")
    num_tokens = int(length[:MAX_DIGITS]) // BYTES_PER_TOKEN if length.isdecimal() else 0
    return Load(1, min(num_tokens, max_model_len))


class Arrivals:
    """One gateway's. Lives in one event loop."""

    def __init__(self) -> None:
        self.load = NOTHING

    @contextmanager
    def one(self, load: Load) -> Iterator[None]:
        """A request of about this load arrives, until `arrived` is called within the context, also
        by a task that began in it.
        """
        arrival = _Arrival(self, load)
        token = _current.set(arrival)
        try:
            yield
        finally:
            arrival.end()
            _current.reset(token)


class _Arrival:
    def __init__(self, arrivals: Arrivals, load: Load) -> None:
        self._arrivals = arrivals
        self._load = load
        arrivals.load += load

    def end(self) -> None:
        self._arrivals.load -= self._load
        self._load = NOTHING


_current: ContextVar[_Arrival | None] = ContextVar("arrival", default=None)


def is_let_in() -> bool:
    """Whether the request of this context is one that `Arrivals` have counted."""
    return _current.get() is not None


def arrived() -> None:
    """The request of this context is about to count elsewhere."""
    if (arrival := _current.get()) is not None:
        arrival.end()
