"""Requests that arrive: what is known of one before its body is read, and how many a gateway has
let in that nothing else counts yet. In an overload hundreds are being read at once, and each of
them would find the same room.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from starlette.datastructures import Headers
from starlette.types import Scope

from cluster.api.scopes import path_of
from cluster.api.service import Arriving
from cluster.headers.full_queue import RESUMABLE
from engine.admission.queue_limits import NOTHING, Load
from engine.request import BYTES_PER_TOKEN

TOLD = "squadron.told"  # among a scope's `extensions`: a mapping that gets these once they are known
MODEL = "model"  # the name of the one that is asked for
KEY = "key"  # the name of the API key that asks
MAX_DIGITS = 18  # of a length; Python reads no number of thousands of digits


def asks_for_rest(scope: Scope) -> bool:
    """Whether a request asks for the rest of a stream that broke. If there was one, it was let in
    before.
    """
    path = path_of(scope)
    return path in RESUMABLE and any(name == b"last-event-id" for name, _ in scope["headers"])


def tell_model(scope: Scope, name: str) -> None:
    """The model that the request asks for."""
    scope.get("extensions", {}).get(TOLD, {})[MODEL] = name


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
        self._load_of: dict[str | None, Load] = {}  # by API key

    def beside(self, key: str | None) -> Arriving:
        """What arrives already when the key asks."""
        return Arriving(self.load, self._load_of.get(key, NOTHING))

    def add(self, load: Load, key: str | None) -> None:
        self.load += load
        self._load_of[key] = self._load_of.get(key, NOTHING) + load

    def remove(self, load: Load, key: str | None) -> None:
        """What was added."""
        self.load -= load
        self._load_of[key] -= load
        if self._load_of[key] == NOTHING:
            del self._load_of[key]

    @contextmanager
    def one(self, load: Load, key: str | None = None) -> Iterator[None]:
        """A request of about this load arrives, until `arrived` is called within the context, also
        by a task that began in it. `key`: the API key's name, where keys share the queue.
        """
        arrival = _Arrival(self, load, key)
        token = _current.set(arrival)
        try:
            yield
        finally:
            arrival.end()
            _current.reset(token)


class _Arrival:
    def __init__(self, arrivals: Arrivals, load: Load, key: str | None) -> None:
        self._arrivals = arrivals
        self._load = load
        self._key = key
        self._has_ended = False
        arrivals.add(load, key)

    def end(self) -> None:
        if not self._has_ended:
            self._arrivals.remove(self._load, self._key)
        self._has_ended = True


_current: ContextVar[_Arrival | None] = ContextVar("arrival", default=None)


def is_let_in() -> bool:
    """Whether the request of this context is one that `Arrivals` have counted."""
    return _current.get() is not None


def arrived() -> None:
    """The request of this context is about to count elsewhere."""
    if (arrival := _current.get()) is not None:
        arrival.end()
