"""Stores which adapters were loaded and unloaded, for all gateways: in Ray's own store on the head
node, which outlives each gateway.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Protocol
from urllib.parse import quote

import msgspec

from cluster.api.errors import Unavailable
from cluster.head import runs, store
from engine.request import Adapter

KEPT = 16  # versions of what is stored
RETRY_AFTER = 5.0  # seconds


class Change(msgspec.Struct, frozen=True):
    """Of an adapter's name."""

    adapter: Adapter | None  # None: it was unloaded
    load: str = ""  # drawn by who loads it: another gateway may load the same one


class AdapterStore(Protocol):
    """The last change of each adapter name in the application's run."""

    async def swap(self, name: str, before: Change | None, after: Change | None) -> bool:
        """Store `after` (None: nothing of the name) if `before` is what is stored; whether `after`
        is there then. Raises Unavailable, perhaps after it was stored.
        """

    async def read(self) -> dict[str, Change]:
        """Raises Unavailable."""


class RayAdapterStore:
    """An application's. Each change of whatever name stores all names anew, under the next number:
    Ray's store tells the second one that is added under a number that it came too late.
    """

    def __init__(self, app_name: str, run: str, model: str, source: str) -> None:
        """`run`: of the application (`cluster.head.runs`); `model`: the name of the one that the
        adapters are of, and `source` where its weights are from.
        """
        place = runs.place("adapters", app_name, run)
        self._prefix = f"{place}{quote(model, safe='')}/{store.digest(source)}/".encode()

    async def swap(self, name: str, before: Change | None, after: Change | None) -> bool:
        with _answering():
            return await asyncio.to_thread(self._swap, name, before, after)

    async def read(self) -> dict[str, Change]:
        with _answering():
            return (await asyncio.to_thread(self._last))[1]

    def _swap(self, name: str, before: Change | None, after: Change | None) -> bool:
        while True:
            number, changes = self._last()
            found = changes.pop(name, None)
            if found != before or before == after:
                return found == after  # by this call, if an answer was lost and it was made again
            if after is not None:
                changes[name] = after
            if self._add(number + 1, changes):
                return True

    def _last(self) -> tuple[int, dict[str, Change]]:
        """Its number, and what is stored."""
        while numbers := store.numbers(self._prefix):
            value = store.read(self._key(max(numbers)))
            if value is not None:  # otherwise many others came since
                return max(numbers), msgspec.json.decode(value, type=dict[str, Change])
        return 0, {}

    def _add(self, number: int, changes: dict[str, Change]) -> bool:
        """False if another one has the number, or had it."""
        if not store.claim(self._key(number), msgspec.json.encode(changes)):
            return False
        numbers = store.numbers(self._prefix)
        is_late = max(numbers, default=number) >= number + KEPT
        for old in [number] if is_late else [each for each in numbers if each <= number - KEPT]:
            store.delete(self._key(old))
        return not is_late

    def _key(self, number: int) -> bytes:
        return self._prefix + str(number).encode()


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Raises Unavailable where Ray does not answer."""
    try:
        yield
    except store.NoRecord:
        message = "Ray's head, which knows the adapters, does not answer now"
        raise Unavailable(message, code="not_ready", retry_after=RETRY_AFTER) from None
