"""Who is let in, and who must leave."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from engine.offload.peers import places
from engine.offload.peers.places import Places
from engine.worker.cache.readers import NUM_OF_ONE


@pytest.fixture
def streams() -> Iterator[list[socket.socket]]:
    """Of which each can be shut down."""
    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(8)]
        yield [stack.enter_context(each) for pair in pairs for each in pair]


def is_ended(stream: socket.socket) -> bool:
    try:
        return stream.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False


def test_the_oldest_of_who_has_the_most_gives_way(
    streams: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "MAX_UNPROVEN", 3)
    own = Places()
    peer, *others = streams[::2]  # one end of each pair
    assert own.enter(peer, "10.0.0.1")
    for stream in others[:4]:
        assert own.enter(stream, "10.0.0.2")
    assert [is_ended(stream) for stream in (peer, *others[:4])] == [False, True, True, False, False]
    assert len(own) == 3
    assert own.prove(peer) and not own.prove(others[0]), "it had to leave"
    for stream in (peer, *others):
        own.leave(stream)
        own.leave(stream)
    assert not own


def test_all_ranks_of_some_engines_may_come_at_once() -> None:
    """None of them has to give way, to be without this engine's blocks for a while."""
    own, ranks_of_an_engine = Places(), 8
    with ExitStack() as stack:
        streams = [stack.enter_context(socket.socket()) for _ in range(4 * ranks_of_an_engine * NUM_OF_ONE)]
        for number, stream in enumerate(streams):
            assert own.enter(stream, f"10.0.0.{number % 4}")
        assert all([own.prove(stream) for stream in streams])


def test_who_has_proved_itself_has_places_of_its_own(
    streams: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "MAX_UNPROVEN", 1)
    monkeypatch.setattr(places, "MAX_OF_HOST", 2)
    monkeypatch.setattr(places, "MAX_PROVEN", 3)
    own = Places()
    hosts = ["10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3"]
    taken = [own.enter(stream, host) and own.prove(stream) for stream, host in zip(streams, hosts, strict=False)]
    assert taken == [True, True, False, True, False]
    own.close()
    assert is_ended(streams[0]) and not own.enter(streams[9], "10.0.0.1")
