"""Files of blocks, and nothing else, for who knows the secret."""

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from engine.offload.block_files import BlockFiles, Folder
from engine.offload.file_format import file_name
from engine.offload.peers import answers, block_server, places
from engine.offload.peers.block_server import BlockServer
from engine.offload.peers.peers import Peers
from engine.offload.peers.wire import FILE_LENGTH, MAGIC, NAME_LENGTH, PROOF_BYTES, RANDOM_BYTES, greet_server, receive

HOST, SECRET = "127.0.0.1", "secret"
LAYOUT, CONTENT = "fp_1-tp1pp1", bytes(range(16))
NAME = file_name(LAYOUT, CONTENT, 0)
DATA = os.urandom(3_000_000)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BlockServer]:
    BlockFiles(Folder(str(tmp_path)), LAYOUT, 0).write(CONTENT, DATA)
    server = BlockServer(str(tmp_path), HOST, SECRET)
    try:
        yield server
    finally:
        server.close()


def soon() -> float:
    return time.monotonic() + 60


def connected(server: BlockServer) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), 60)


def greeted(server: BlockServer) -> socket.socket:
    stream = connected(server)
    greet_server(stream, SECRET.encode(), soon())
    return stream


def ask(stream: socket.socket, name: bytes) -> bytes:
    stream.sendall(NAME_LENGTH.pack(len(name)) + name)
    (num_bytes,) = FILE_LENGTH.unpack(receive(stream, FILE_LENGTH.size, soon()))
    return bytes(receive(stream, num_bytes, soon()))


def wait_for_end(stream: socket.socket) -> None:
    stream.settimeout(60)
    while stream.recv(1 << 16):
        pass


def test_files_are_served_whole_and_count_as_used(server: BlockServer, tmp_path: Path) -> None:
    os.utime(tmp_path / NAME, (1, 1))
    with greeted(server) as stream:
        for _ in range(3):
            assert ask(stream, NAME.encode()) == (tmp_path / NAME).read_bytes()
    assert (tmp_path / NAME).stat().st_mtime > 1


def test_nothing_but_blocks_is_served(server: BlockServer, tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("x")
    (tmp_path / f"{NAME}.node.1.2.tmp").write_text("x")
    other = file_name(LAYOUT, bytes(16), 0)
    (tmp_path / other).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / other).symlink_to(tmp_path / "lock")
    outside = f"../{tmp_path.name}/{NAME}"
    names = ["lock", f"{NAME}.node.1.2.tmp", other, outside, f"/{NAME}", f"{NAME}\n", f"{NAME}\0", "", "x" * 256]
    with greeted(server) as stream:
        assert [ask(stream, name.encode()) for name in names] == [b""] * len(names)
        assert ask(stream, b"\xff\xfe") == b""
        assert ask(stream, NAME.encode()), "and it goes on"


def test_a_name_that_is_too_long_ends_the_connection(server: BlockServer) -> None:
    with greeted(server) as stream:
        stream.sendall(NAME_LENGTH.pack(257))
        wait_for_end(stream)


def test_who_does_not_know_the_secret_gets_nothing(server: BlockServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="squadron.offload"):
        for _ in range(2):
            with connected(server) as stream:
                assert receive(stream, len(MAGIC), soon()) == MAGIC
                receive(stream, RANDOM_BYTES, soon())
                stream.sendall(bytes(RANDOM_BYTES + PROOF_BYTES) + NAME_LENGTH.pack(len(NAME)) + NAME.encode())
                stream.settimeout(60)
                with pytest.raises(ConnectionError):
                    if not stream.recv(1):
                        raise ConnectionError
    assert len(caplog.messages) == 1 and "does not know the secret" in caplog.text


def test_who_says_nothing_is_cut_off(server: BlockServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(server) as silent:
        wait_for_end(silent)
    monkeypatch.setattr(answers, "IDLE_SECONDS", 0.2)
    with greeted(server) as idle:
        wait_for_end(idle)


@pytest.mark.parametrize(
    ("bound", "why"), [("MAX_PROVEN", "all addresses have 2 of 2"), ("MAX_OF_HOST", "it has 2 of 2")]
)
def test_connections_are_bounded(
    server: BlockServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, bound: str, why: str
) -> None:
    monkeypatch.setattr(places, bound, 2)
    with greeted(server) as one, greeted(server) as two:
        for each in (one, two):
            assert ask(each, b"nothing") == b"", "it has its place"
        for _ in range(2):
            with greeted(server) as third:
                wait_for_end(third)
        refused = f"{HOST} gets no further connection for blocks: {why} (others are not logged)"
        assert caplog.messages == [refused]
        assert ask(one, NAME.encode()) and ask(two, NAME.encode())
    deadline = soon()
    while server._places:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with greeted(server) as again:
        assert ask(again, NAME.encode())


def test_who_does_not_prove_itself_shuts_nobody_out(server: BlockServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connections have few places of their own, which the newest get, and no time limit is
    what ends them here.
    """
    monkeypatch.setattr(block_server, "GREETING_SECONDS", 60.0)
    with ExitStack() as stack:
        held = stack.enter_context(greeted(server))
        silent = [stack.enter_context(connected(server)) for _ in range(600)]
        with greeted(server) as stream:
            assert ask(stream, NAME.encode()) and ask(held, NAME.encode())
        wait_for_end(silent[0])
        assert len(server._places) <= places.MAX_UNPROVEN + 2


def test_connections_without_a_thread_are_closed(server: BlockServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a cgroup limits them; the server goes on."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "blocks":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            with connected(server) as stream:
                wait_for_end(stream)
    assert not server._places
    with greeted(server) as again:
        assert ask(again, NAME.encode())


def test_closing_ends_all_connections(server: BlockServer) -> None:
    with greeted(server) as stream:
        server.close()
        wait_for_end(stream)
        with pytest.raises(OSError):
            Peers(SECRET).fetch(server.address, NAME, len(DATA) + 100)
    server.close()
