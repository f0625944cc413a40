"""One end of a framed, authenticated, blocking socket between the driver and a worker: of a step
channel, or of the line to the worker's process. `messages` and `line` define what frames mean.
"""

import contextlib
import select
import socket
import threading

from cluster.sockets import LENGTH, MAX_FRAME_BYTES, frame, set_tcp_options

_CHUNK_BYTES = 256 << 10


class ChannelError(Exception):
    """The other end broke the protocol; the connection is unusable."""


class ConnectionEnded(ChannelError):
    """The other end has gone: its process closed the socket or died."""


class Connection:
    """One end of a stream of frames. `send`, `post` and `flush` may be called from any thread,
    `receive` from one.
    """

    def __init__(self, stream: socket.socket, *, limit: int = MAX_FRAME_BYTES) -> None:
        self._stream = stream
        self._limit = limit
        self._sending = threading.Lock()
        self._unsent = bytearray()
        self._buffer = bytearray()
        self._chunk = memoryview(bytearray(_CHUNK_BYTES))
        if stream.family != socket.AF_UNIX:
            set_tcp_options(stream)

    def fileno(self) -> int:
        return self._stream.fileno()

    def send(self, payload: bytes) -> None:
        """Send one frame, however long that takes; raises ConnectionEnded."""
        has_more = self.post(payload)
        while has_more:
            self._poll(select.POLLOUT)
            has_more = self.flush()

    def post(self, payload: bytes) -> bool:
        """Send as much of a frame as the socket takes now; True if the rest waits for `flush`.
        Raises ConnectionEnded.
        """
        if len(payload) > MAX_FRAME_BYTES:
            raise ChannelError(f"a frame of {len(payload)} bytes cannot be sent, at most {MAX_FRAME_BYTES} can")
        data = frame(payload)
        with self._sending:
            if not self._unsent:  # almost always: no copy
                data = data[self._send_now(data) :]
            self._unsent += data
            return self._flush()

    def flush(self) -> bool:
        """Send as much of what waits as the socket takes now; True if anything is left. Raises
        ConnectionEnded.
        """
        with self._sending:
            return self._flush()

    def receive(self) -> list[bytearray]:
        """Wait for bytes, once; the frames that they complete, often one. Raises ConnectionEnded,
        ChannelError.
        """
        try:
            count = self._stream.recv_into(self._chunk)
        except OSError as error:
            raise ConnectionEnded(str(error)) from None
        if count == 0:
            raise ConnectionEnded("end of stream")
        if not self._buffer and self._is_one_frame(count):  # nearly always
            return [bytearray(self._chunk[LENGTH.size : count])]
        self._buffer += self._chunk[:count]
        frames = []
        start = 0
        while (end := self._end_of_frame(start)) <= len(self._buffer):
            frames.append(self._buffer[start + LENGTH.size : end])
            start = end
        del self._buffer[:start]
        return frames

    def _flush(self) -> bool:
        while self._unsent and (sent := self._send_now(self._unsent)):
            del self._unsent[:sent]
        return bool(self._unsent)

    def _send_now(self, data: bytes | bytearray) -> int:
        """How many bytes the socket took."""
        try:
            return self._stream.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ConnectionEnded(str(error)) from None

    def wait_for_end(self) -> None:
        """Block until the other end has closed, ignoring what it sends. For a thread of its own."""
        self._poll(select.POLLRDHUP)

    def wait_for_bytes(self, seconds: float) -> bool:
        """Whether there is something to `receive`, or its error."""
        return bool(self._poll(select.POLLIN, seconds * 1000))

    def _poll(self, event: int, milliseconds: float | None = None) -> list[tuple[int, int]]:
        poll = select.poll()  # select.select takes no descriptors above 1023
        poll.register(self._stream, event)
        return poll.poll(milliseconds)

    def end(self) -> None:
        """End both directions: callers that wait at either end get ConnectionEnded."""
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it and close the descriptor; no other thread may be using it."""
        self.end()
        self._stream.close()

    def set_limit(self, limit: int, timeout: float | None) -> None:
        """The longest frame accepted from now on, and the seconds a `receive` may wait."""
        self._limit = limit
        self._stream.settimeout(timeout)

    def _is_one_frame(self, count: int) -> bool:
        """Whether that many bytes of the chunk are exactly one frame, no longer than allowed."""
        length = count - LENGTH.size
        return 0 <= length <= self._limit and LENGTH.unpack_from(self._chunk)[0] == length

    def _end_of_frame(self, start: int) -> int:
        if len(self._buffer) - start < LENGTH.size:
            return len(self._buffer) + 1
        (length,) = LENGTH.unpack_from(self._buffer, start)
        if length > self._limit:
            raise ChannelError(f"a frame of {length} bytes, at most {self._limit} are taken")
        return start + LENGTH.size + int(length)
