"""Who is let in, under which name, and until when."""

import os
import socket
import struct
import time

import pytest

from cluster.sockets import TOKEN_BYTES
from cluster.sockets.connection import ConnectionEnded
from cluster.sockets.listener import Listener, connect

SECONDS = 120  # more than anything here takes


@pytest.mark.parametrize("host", [None, "127.0.0.1"], ids=["unix", "tcp"])
def test_names_whoever_knows_the_token(host: str | None) -> None:
    listener = Listener(host)
    far = connect(listener.address, listener.token, "3")
    name, near = listener.accept(time.monotonic() + SECONDS)
    listener.close()
    near.send(b"hello")
    assert (name, far.receive()) == ("3", [b"hello"])
    near.close()
    far.close()


def test_turns_away_whoever_does_not() -> None:
    listener = Listener("127.0.0.1")
    strangers = [connect(listener.address, token, "0") for token in (bytes(TOKEN_BYTES), b"", b"\xff" * 31)]
    host, port = listener.address.removeprefix("tcp:").split(":")
    too_long = socket.create_connection((host, int(port)))
    too_long.sendall(struct.pack(">I", 1 << 30))
    friend = connect(listener.address, listener.token, "1")
    name, near = listener.accept(time.monotonic() + SECONDS)
    assert name == "1"
    for stranger in strangers:
        with pytest.raises(ConnectionEnded):
            stranger.receive()
        stranger.close()
    with too_long:
        assert too_long.recv(1) == b""
    listener.close()
    near.close()
    friend.close()


def test_gives_up_at_the_deadline() -> None:
    listener = Listener(None)
    with pytest.raises(TimeoutError):
        listener.accept(time.monotonic() + 0.01)
    listener.close()


def test_unix_socket_is_gone_afterwards() -> None:
    listener = Listener(None)
    path = listener.address.removeprefix("unix:")
    assert os.path.exists(path)
    listener.close()
    assert not os.path.exists(os.path.dirname(path))


def test_address_of_another_kind() -> None:
    with pytest.raises(ValueError, match="neither unix: nor tcp:"):
        connect("http://127.0.0.1", b"", "0")
