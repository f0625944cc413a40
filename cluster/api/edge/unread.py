"""A limit on how long a client may leave its answer unread."""

import asyncio
import socket
import struct
from typing import Any

from cluster.api.edge.writable import WritableConnection

UNREAD_SECONDS = 30.0
_RESET = struct.pack("ii", 1, 0)  # struct linger: on, for no time


class UnreadLimit(WritableConnection):
    """An HTTP connection of a proxy's server, or of a gateway's own one.

    A client that reads more slowly than its answer is made has the rest of it waiting here, beside
    what the kernel holds: more than 64 KiB, and then for `unread_seconds` never less than 16 KiB,
    and the connection is closed. It costs nothing a token.
    """

    unread_seconds = UNREAD_SECONDS

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._unread: asyncio.TimerHandle | None = None  # since the client reads too slowly

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.unread_seconds, self._give_up)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop()

    def _give_up(self) -> None:
        """With a reset: at a normal end the kernel would keep what it holds until that is read."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def _stop(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
