"""Frames to all ranks and from each, without waiting for one of them."""

import contextlib
import socket
from collections.abc import Iterator
from threading import Thread

import pytest

from cluster.sockets.connection import Connection, ConnectionEnded
from cluster.workers.steps.rank_sockets import RankSockets

SECONDS = 120.0


@pytest.fixture
def ends() -> Iterator[tuple[RankSockets, list[Connection]]]:
    """The driver's sockets, and the ends of two ranks."""
    pairs = [socket.socketpair() for _ in range(2)]
    sockets, ranks = RankSockets([Connection(ours) for ours, _ in pairs]), [Connection(theirs) for _, theirs in pairs]
    yield sockets, ranks
    for rank in range(2):
        sockets.drop(rank)
        ranks[rank].close()
    sockets.close()


def test_a_frame_reaches_every_rank_and_answers_say_whose_they_are(ends: tuple[RankSockets, list[Connection]]) -> None:
    sockets, ranks = ends
    sockets.post(b"step")
    assert [rank.receive() for rank in ranks] == [[b"step"]] * 2
    ranks[1].send(b"done")
    assert list(sockets.read(SECONDS)) == [(1, [b"done"])]


def test_a_frame_may_be_for_the_last_ranks_alone(ends: tuple[RankSockets, list[Connection]]) -> None:
    sockets, ranks = ends
    sockets.post(b"masks", 1)
    sockets.post(b"step", 2)
    assert [ranks[0].receive(), ranks[1].receive()] == [[b"step"], [b"masks", b"step"]]


def test_a_rank_that_has_gone_is_told_of_and_dropped(ends: tuple[RankSockets, list[Connection]]) -> None:
    sockets, ranks = ends
    ranks[0].close()
    ((rank, error),) = sockets.read(SECONDS)
    assert rank == 0 and isinstance(error, ConnectionEnded)
    sockets.drop(0)
    sockets.drop(0)
    assert sockets.are_open
    sockets.post(b"step")  # the others get it all the same
    assert ranks[1].receive() == [b"step"]
    sockets.drop(1)
    assert not sockets.are_open


def test_what_a_socket_does_not_take_is_sent_by_the_reader(ends: tuple[RankSockets, list[Connection]]) -> None:
    sockets, ranks = ends
    large = bytes(8 << 20)  # more than a socket holds
    received: list[bytearray] = []

    def receive() -> None:
        while not received:
            received.extend(ranks[0].receive())
        ranks[0].send(b"done")

    reader = Thread(target=receive)
    sockets.post(large)
    reader.start()
    answers: list[object] = []
    while not answers:
        answers = [frames for rank, frames in sockets.read(SECONDS) if rank == 0]
    reader.join()
    assert answers == [[b"done"]] and bytes(received[0]) == large


def test_a_reader_that_waits_can_be_woken(ends: tuple[RankSockets, list[Connection]]) -> None:
    sockets, _ = ends
    with contextlib.closing(sockets.read(SECONDS)) as reading:
        sockets.wake()
        assert list(reading) == []
