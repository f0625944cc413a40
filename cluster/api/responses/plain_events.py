"""The shortcut of a stream: events that differ in nothing but their text are written without waking
the stream's task.
"""

from collections.abc import Callable

import msgspec

from cluster.api.connection.body_writer import Write
from cluster.api.responses.generation import Tally
from cluster.api.responses.stream import escape_line_ends

_MARK = "\0text\0"  # for the text, in an event that shows what is around it


class PlainEvents:
    """A `Shortcut`, open from the stream's first event on. Its bytes are those that the stream's
    task would send.
    """

    def __init__(self, write: Write | None) -> None:
        """`write`: see `cluster.api.connection.body_writer`; without it, everything takes the long
        way.
        """
        self._write = write
        self._encode = msgspec.json.Encoder().encode
        self._tally: Tally | None = None
        self._fingerprint: str | None = None

    def open(self, tally: Tally, event: Callable[[str], bytes]) -> None:
        """Take texts from now on. `event`: of a text, with the tally's fingerprint."""
        if self._write is None or (self._tally is tally and self._fingerprint == tally.fingerprint):
            return
        around = event(_MARK).split(self._encode(_MARK))
        if len(around) == 2:
            self._before, self._after = around
            self._tally, self._fingerprint = tally, tally.fingerprint

    def __call__(self, text: str, num_tokens: int) -> bool:
        if self._tally is None or self._write is None:
            return False
        if text:
            data = self._before + escape_line_ends(self._encode(text)) + self._after
            if not self._write(data):
                return False
        self._tally.add_tokens(num_tokens)
        return True
