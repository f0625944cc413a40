"""Both ends prove that they know the secret, without sending it."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.offload.peers.wire import MAGIC, PROOF_BYTES, RANDOM_BYTES, greet_reader, greet_server, receive, send

SECRET = b"a secret of the application's"


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def soon() -> float:
    return time.monotonic() + 60


def greet(server: socket.socket, reader: socket.socket, read: bytes) -> tuple[bool, BaseException | None]:
    """Whether the server takes a reader with that secret, and why the reader does not take the
    server.
    """
    with ThreadPoolExecutor(1) as thread:
        greeting = thread.submit(greet_server, reader, read, soon())
        is_taken = greet_reader(server, SECRET, soon())
        if not is_taken:
            server.shutdown(socket.SHUT_RDWR)
        return is_taken, greeting.exception(60)


def test_who_knows_the_secret_is_taken_and_others_are_not(pair: tuple[socket.socket, socket.socket]) -> None:
    assert greet(*pair, SECRET) == (True, None)
    is_taken, problem = greet(*pair, b"another")
    assert not is_taken and isinstance(problem, ConnectionError)


def test_a_reader_sends_nothing_to_a_server_that_does_not_know_the_secret(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    server, reader = pair
    server.sendall(MAGIC + bytes(RANDOM_BYTES) + bytes(PROOF_BYTES))
    with pytest.raises(ConnectionError, match="does not know the secret"):
        greet_server(reader, SECRET, soon())


def test_no_proof_can_be_used_again_or_sent_back(pair: tuple[socket.socket, socket.socket]) -> None:
    """Each connection draws anew, and a reader's proof is none of a server."""
    server, reader = pair
    said = []
    for _ in range(2):
        with ThreadPoolExecutor(1) as thread:
            greeting = thread.submit(greet_server, reader, SECRET, soon())
            server.sendall(MAGIC + bytes(RANDOM_BYTES))
            said.append(bytes(receive(server, RANDOM_BYTES + PROOF_BYTES, soon())))
            server.sendall(said[-1][RANDOM_BYTES:])
            assert isinstance(greeting.exception(60), ConnectionError)
    assert said[0] != said[1] and not any(SECRET in each for each in said)
    with ThreadPoolExecutor(1) as thread:
        greeting = thread.submit(greet_reader, server, SECRET, soon())
        receive(reader, len(MAGIC) + RANDOM_BYTES, soon())
        reader.sendall(said[0])
        assert greeting.result(60) is False


def test_a_stream_that_ends_or_dribbles_is_an_error_in_time(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    one.sendall(b"ab")
    with pytest.raises(TimeoutError):
        receive(other, 3, time.monotonic() + 0.2)
    with pytest.raises(TimeoutError):
        send(other, b"x", time.monotonic() - 1)
    one.close()
    with pytest.raises(ConnectionError):
        receive(other, 1, soon())
