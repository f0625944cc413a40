"""One client reads a stream at a time: whoever resumes it takes it over from who had it before."""

import asyncio

from cluster.api.errors import ApiError

Reader = asyncio.Event  # set once another has taken the stream over


class Readers:
    """Those of a gateway, whose event loop they live in."""

    def __init__(self) -> None:
        self._newest: dict[str, Reader] = {}  # by the stream's request

    def begin(self, request_id: str) -> Reader:
        """The reader from now on."""
        if (before := self._newest.get(request_id)) is not None:
            before.set()
        reader = self._newest[request_id] = Reader()
        return reader

    def end(self, request_id: str, reader: Reader) -> bool:
        """Whether nobody reads the stream any more."""
        if self._newest.get(request_id) is not reader:
            return False
        del self._newest[request_id]
        return True


def taken_over() -> ApiError:
    """The answer to whoever read it before."""
    return ApiError(409, "Another request has resumed this stream and has the rest of it", code="stream_taken_over")
