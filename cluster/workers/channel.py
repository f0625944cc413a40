"""The step channel's wire: framed, authenticated, blocking sockets between the driver and its
workers.

A frame is its length (4 bytes, big-endian) and as many bytes; what they mean is `messages`' affair.
The first frame of a connection is the driver's token and a name. Addresses are `unix:PATH` (ranks
on the driver's node) or `tcp:HOST:PORT`.
"""

import contextlib
import hmac
import secrets
import select
import shutil
import socket
import struct
import tempfile
import threading
import time

LOOPBACK = "127.0.0.1"
MAX_FRAME_BYTES = 256 << 20
MAX_NAME_BYTES = 64
TOKEN_BYTES = 32
_HELLO_SECONDS = 1.0  # for a connection to show its token; meanwhile the others wait
_LENGTH = struct.Struct(">I")
_CHUNK_BYTES = 256 << 10
# A node that vanishes sends no end of stream: five silent seconds are one.
_TCP_OPTIONS = {
    socket.TCP_NODELAY: 1,
    socket.TCP_KEEPIDLE: 2,
    socket.TCP_KEEPINTVL: 1,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 5000,
}


class ChannelError(Exception):
    """The other end broke the protocol; the connection is of no more use."""


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

    def send(self, frame: bytes) -> None:
        """Send one frame, however long that takes; raises ConnectionEnded."""
        has_more = self.post(frame)
        while has_more:
            select.select([], [self._stream], [])
            has_more = self.flush()

    def post(self, frame: bytes) -> bool:
        """Send as much of a frame as the socket takes now; True if the rest waits for `flush`.
        Raises ConnectionEnded.
        """
        if len(frame) > MAX_FRAME_BYTES:
            raise ChannelError(f"a frame of {len(frame)} bytes cannot be sent, at most {MAX_FRAME_BYTES} can")
        data = _LENGTH.pack(len(frame)) + frame
        with self._sending:
            if not self._unsent:  # as good as always: no copy
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
        if not self._buffer and self._is_one_frame(count):  # as good as always
            return [bytearray(self._chunk[_LENGTH.size : count])]
        self._buffer += self._chunk[:count]
        frames = []
        start = 0
        while (end := self._end_of_frame(start)) <= len(self._buffer):
            frames.append(self._buffer[start + _LENGTH.size : end])
            start = end
        del self._buffer[:start]
        return frames

    def _flush(self) -> bool:
        while self._unsent and (sent := self._send_now(self._unsent)):
            del self._unsent[:sent]
        return bool(self._unsent)

    def _send_now(self, data: bytes | bytearray) -> int:
        """How much of it the socket took."""
        try:
            return self._stream.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ConnectionEnded(str(error)) from None

    def wait_for_end(self) -> None:
        """Until the other end has gone, whatever else comes meanwhile. For a thread of its own."""
        poll = select.poll()
        poll.register(self._stream, select.POLLRDHUP)
        poll.poll()

    def end(self) -> None:
        """End both ways: whoever waits here or at the other end gets ConnectionEnded."""
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it and give the descriptor back; no other thread may be using it."""
        self.end()
        self._stream.close()

    def set_limit(self, limit: int, timeout: float | None) -> None:
        """The longest frame taken from now on, and the seconds a `receive` may wait."""
        self._limit = limit
        self._stream.settimeout(timeout)

    def _is_one_frame(self, count: int) -> bool:
        """Whether as many bytes of the chunk are one frame, whole and no longer than allowed."""
        length = count - _LENGTH.size
        return 0 <= length <= self._limit and _LENGTH.unpack_from(self._chunk)[0] == length

    def _end_of_frame(self, start: int) -> int:
        if len(self._buffer) - start < _LENGTH.size:
            return len(self._buffer) + 1
        (length,) = _LENGTH.unpack_from(self._buffer, start)
        if length > self._limit:
            raise ChannelError(f"a frame of {length} bytes, at most {self._limit} are taken")
        return start + _LENGTH.size + int(length)


class Listener:
    """The driver's end before its workers have come. `address` and `token` are what they need to
    know.
    """

    def __init__(self, host: str | None) -> None:
        """Listen on a free port of `host`, or if it is None on a Unix socket that only this user
        can reach.
        """
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self._folder: str | None = None
        if host is None:
            self._folder = tempfile.mkdtemp(prefix="squadron-")
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.bind(f"{self._folder}/steps")
            self.address = f"unix:{self._folder}/steps"
        else:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, 0), family=family)
            self.address = f"tcp:{host}:{self._socket.getsockname()[1]}"
        self._socket.listen(socket.SOMAXCONN)

    def accept(self, deadline: float) -> tuple[str, Connection]:
        """The next connection that shows the token, and its name; raises TimeoutError at `deadline`
        (time.monotonic).
        """
        while True:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            stream, _ = self._socket.accept()
            connection = Connection(stream)
            name = self._greet(connection)
            if name is not None:
                return name, connection
            connection.close()

    def close(self) -> None:
        """Take no more connections; those that were accepted stay."""
        self._socket.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _greet(self, connection: Connection) -> str | None:
        """The name that came with the right token; None if something else came, or nothing in time.

        What came right behind it is dropped: a line's words mean no more than the next ones.
        """
        connection.set_limit(TOKEN_BYTES + MAX_NAME_BYTES, _HELLO_SECONDS)
        try:
            frames = connection.receive()
            frames = frames or connection.receive()
        except ChannelError:
            return None
        if not frames or not hmac.compare_digest(bytes(frames[0][:TOKEN_BYTES]), self.token):
            return None
        connection.set_limit(MAX_FRAME_BYTES, None)
        return frames[0][TOKEN_BYTES:].decode(errors="replace")


def set_tcp_options(stream: socket.socket) -> None:
    """Have a TCP connection send at once, and end when its other end's node has vanished."""
    for option, value in _TCP_OPTIONS.items():
        stream.setsockopt(socket.IPPROTO_TCP, option, value)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def connect(address: str, token: bytes, name: str) -> Connection:
    """Connect to a Listener and say who we are; raises OSError, ValueError for an address of
    another kind.
    """
    kind, _, rest = address.partition(":")
    if kind == "unix":
        stream = socket.socket(socket.AF_UNIX)
        stream.connect(rest)
    elif kind == "tcp":
        host, _, port = rest.rpartition(":")
        stream = socket.create_connection((host, int(port)))
    else:
        raise ValueError(f"address {address!r} begins with neither unix: nor tcp:")
    connection = Connection(stream)
    connection.send(token + name.encode())
    return connection
