"""The shortcut of a stream: events that differ in nothing but their text, and their numbers, are
written without waking the stream's task.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from cluster.api.connection.body_writer import Write
from cluster.api.responses.generation import Tally
from cluster.api.responses.stream import escape_line_ends

_MARK = "\0text\0"  # for the text, in an event that shows what is around it
_NUMBER = 999_999_999_999_989  # likewise for a number: no event has as high a one


class Numbered(Protocol):
    """Numbers a stream's events, those of the shortcut among them."""

    @property
    def next_number(self) -> int:
        """Of the next event."""

    def add_plain(self, text: str, token_ids: Sequence[int]) -> None:
        """The next event, of these tokens, has been written; none if they have no text."""


class NamesEvents(Numbered, Protocol):
    def named(self, number: int, event: bytes) -> bytes:
        """The event with its id."""


class PlainEvents:
    """A `Shortcut`, open from the stream's first event on. Its bytes are those that the stream's
    task would send.
    """

    def __init__(self, write: Write | None, names: NamesEvents | None = None) -> None:
        """`write`: see `cluster.api.connection.body_writer`; without it, everything takes the long
        way. `names`: gives events their ids, if they have any.
        """
        self._write = write
        self._names = names
        self._encode = msgspec.json.Encoder().encode
        self._tally: Tally | None = None
        self._fingerprint: str | None = None
        self._numbered: tuple[Numbered, ...] = ()

    def open(self, tally: Tally, event: Callable[[str], bytes]) -> None:
        """Take texts from now on. `event`: of a text, with the tally's fingerprint."""
        self._open(tally, lambda text, _: event(text))

    def open_numbered(self, tally: Tally, event: Callable[[str, int], bytes], numbered: Numbered) -> None:
        """As `open`, of events with a number in front of their text."""
        self._open(tally, event, numbered)

    def _open(self, tally: Tally, event: Callable[[str, int], bytes], *numbered: Numbered) -> None:
        if self._write is None or (self._tally is tally and self._fingerprint == tally.fingerprint):
            return
        marked = event(_MARK, _NUMBER)
        if self._names is not None:
            marked, numbered = self._names.named(_NUMBER, marked), (self._names, *numbered)
        around, number = marked.split(self._encode(_MARK)), b"%d" % _NUMBER
        if len(around) != 2 or around[0].count(number) != len(numbered):
            return
        self._before, self._after = around
        if numbered:
            self._before = self._before.replace(b"%", b"%%").replace(number, b"%d")
        self._numbered, self._tally, self._fingerprint = numbered, tally, tally.fingerprint

    def __call__(self, text: str, token_ids: Sequence[int]) -> bool:
        if self._tally is None or self._write is None:
            return False
        if text:
            before = self._before
            if self._numbered:
                before %= tuple([numbered.next_number for numbered in self._numbered])
            if not self._write(before + escape_line_ends(self._encode(text)) + self._after):
                return False
        for numbered in self._numbered:
            numbered.add_plain(text, token_ids)
        self._tally.add_tokens(len(token_ids))
        return True
