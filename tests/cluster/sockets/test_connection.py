"""Frames between two ends of a connection."""

import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from cluster.sockets.connection import ChannelError, Connection, ConnectionEnded
from tests.cluster.sockets.descriptors import pair_beyond_select


@contextmanager
def connection_pair() -> Iterator[tuple[Connection, Connection]]:
    left, right = (Connection(end) for end in socket.socketpair())
    try:
        yield left, right
    finally:
        left.close()
        right.close()


def test_frames_arrive_whole_and_in_order() -> None:
    frames = [b"", b"a", bytes(3 << 20), b"last"]
    with connection_pair() as (left, right):
        sender = threading.Thread(target=lambda: [left.send(frame) for frame in frames])
        sender.start()
        received: list[bytearray] = []
        while len(received) < len(frames):
            received += right.receive()
        sender.join()
    assert received == frames


def test_send_waits_for_a_reader_whatever_its_descriptor() -> None:
    big = bytes(8 << 20)
    with pair_beyond_select() as pair:
        left, right = (Connection(end) for end in pair)
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(left.send, big)
            received = right.receive()
            while not received and not sent.done():
                received += right.receive()
            sent.result()
            while not received:
                received += right.receive()
    assert received == [big]


def test_post_does_not_wait_for_the_reader() -> None:
    big = bytes(8 << 20)
    with connection_pair() as (left, right):
        assert left.post(big)
        assert left.post(b"after it")
        received: list[bytearray] = []
        while len(received) < 2:
            received += right.receive()
            left.flush()
    assert received == [big, b"after it"]


def test_end_is_noticed_while_sending_and_receiving() -> None:
    with connection_pair() as (left, right):
        right.close()
        with pytest.raises(ConnectionEnded):
            left.receive()
        with pytest.raises(ConnectionEnded):
            left.send(b"x")


def test_frame_beyond_the_limit_is_refused_before_it_is_read() -> None:
    near, far = socket.socketpair()
    with near, far:
        connection = Connection(near)
        far.sendall(struct.pack(">I", 1 << 31))
        with pytest.raises(ChannelError, match="2147483648 bytes"):
            connection.receive()
