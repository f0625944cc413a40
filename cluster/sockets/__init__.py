"""What our sockets have in common: loopback, tokens, frames, TCP options.

A frame is its length (4 bytes, big-endian) and as many bytes. The first frame of a connection is
the listener's token, new for each listener, and a name. Imports no installed package, because a
witness, which has none, sends frames too.
"""

import socket
import struct

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 32
MAX_FRAME_BYTES = 256 << 20
LENGTH = struct.Struct(">I")
# A node that vanishes sends no end of stream: five seconds of silence count as the end.
_TCP_OPTIONS = {
    socket.TCP_NODELAY: 1,
    socket.TCP_KEEPIDLE: 2,
    socket.TCP_KEEPINTVL: 1,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 5000,
}


def frame(payload: bytes) -> bytes:
    return LENGTH.pack(len(payload)) + payload


def set_tcp_options(stream: socket.socket, *, ends_unread: bool = True) -> None:
    """Make a TCP connection send at once, and end when the other end's node has vanished;
    `ends_unread`: also when the other end reads nothing for five seconds.
    """
    for option, value in _TCP_OPTIONS.items():
        stream.setsockopt(socket.IPPROTO_TCP, option, value)
    if not ends_unread:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
