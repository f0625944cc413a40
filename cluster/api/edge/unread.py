"""A limit on how long a client may leave its answer unread."""

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from typing import Any

from cluster.api.edge.writable import WritableConnection

UNREAD_SECONDS = 30.0
LEAST_READ = 16 << 10  # bytes, within them
_RESET = struct.pack("ii", 1, 0)  # struct linger: on, for no time


class UnreadLimit(WritableConnection):
    """An HTTP connection of a proxy's server, or of a gateway's own one.

    A client that reads more slowly than its answer is made has a part of it waiting here, 64 KiB or
    more beside what the kernel holds. Until it has caught up, it must read LEAST_READ in every
    `unread_seconds`, or the connection is closed. It costs nothing a token.
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
        self._look_again()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop()

    def _look_again(self) -> None:
        self._unread = self.loop.call_later(self.unread_seconds, self._look, self._num_left())

    def _num_left(self) -> int:
        """Bytes that the client has not taken, here and in the kernel, which hands them on in parts
        of up to a megabyte. None are added meanwhile: the application waits.
        """
        in_kernel = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        return int(self.transport.get_write_buffer_size()) + int.from_bytes(in_kernel, sys.byteorder)

    def _look(self, left: int) -> None:
        if left - self._num_left() < LEAST_READ:
            self._give_up()
        else:
            self._look_again()

    def _give_up(self) -> None:
        """With a reset: at a normal end the kernel would keep what it holds until that is read."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def _stop(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
