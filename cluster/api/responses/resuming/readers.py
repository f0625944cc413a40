"""One client reads a stream at a time: whoever resumes it takes it over from who had it before.

A client names the last event that it has, and may name one that there is not. Whoever resumes a
stream after an event that is not known to exist takes over nobody until its own stream has got
there. So for a while there may be two readers, one that has the stream and one that has to show
that it may, but never three: a further one with a higher number than the latter's is refused, and
one with the same or a lower number takes the latter's place, since it says to have no more.
"""

import asyncio

from cluster.api.errors import ApiError, Unavailable

RETRY_AFTER = 2.0  # seconds


class Reader(asyncio.Event):
    """Set once another has taken the stream over."""

    def __init__(self, last: int) -> None:
        """`last`: the number of the last event that it says to have, 0 for none."""
        super().__init__()
        self.last = last
        self.num_events = 0  # that were made for it

    def may_have(self, number: int) -> bool:
        """Whether it has an event of that number, or says so: then it loses nothing that it has a
        right to if it is taken over.
        """
        return number <= max(self.last, self.num_events)


class Readers:
    """Those of a gateway, whose event loop they live in."""

    def __init__(self) -> None:
        self._of: dict[str, list[Reader]] = {}  # by the stream's request, the newest at the end

    def begin(self, request_id: str, reader: Reader, num_stored: int) -> None:
        """It reads from now on. `num_stored`: events that are known to exist. Raises Unavailable if
        another one has to show first that its event exists; then nobody is taken over.
        """
        before = self._of.get(request_id, [])
        left = [] if reader.last <= num_stored else [other for other in before if not other.may_have(reader.last)]
        if len(left) > 1:
            message = "Another request resumes this stream, and has to reach its event first"
            raise Unavailable(message, code="not_ready", retry_after=RETRY_AFTER)
        self._take_over(request_id, [other for other in before if other not in left])
        self._of.setdefault(request_id, []).append(reader)

    def made(self, request_id: str, reader: Reader) -> None:
        """More events were made for it: once it has got to its last, it takes over those that were
        before it.
        """
        readers = self._of.get(request_id, [])
        if reader.num_events >= reader.last and reader in readers:
            self._take_over(request_id, readers[: readers.index(reader)])

    def end(self, request_id: str, reader: Reader) -> bool:
        """Whether nobody reads the stream any more."""
        readers = self._of.get(request_id, [])
        if reader not in readers:
            return False
        readers.remove(reader)
        if not readers:
            del self._of[request_id]
        return not readers

    def _take_over(self, request_id: str, others: list[Reader]) -> None:
        for other in others:
            other.set()
            self._of[request_id].remove(other)


def taken_over() -> ApiError:
    """The answer to whoever read it before."""
    return ApiError(409, "Another request has resumed this stream and has the rest of it", code="stream_taken_over")
