"""Blocks come from another node whole and in time, or are computed."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.offload.block_files import BlockFiles, Folder
from engine.offload.file_format import file_name
from engine.offload.peers import block_server, peers
from engine.offload.peers.block_server import BlockServer
from engine.offload.peers.peers import Peers
from engine.offload.peers.wire import FILE_LENGTH, NAME_LENGTH, greet_reader, receive
from tests.engine.offload.peers.test_block_server import CONTENT, DATA, HOST, LAYOUT, NAME, SECRET, soon

OTHER = bytes(16)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends wait, on a machine where many tests run."""
    monkeypatch.setattr(peers, "SECONDS", 60.0)
    monkeypatch.setattr(block_server, "GREETING_SECONDS", 60.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The other node's, with one block."""
    BlockFiles(Folder(str(tmp_path / "there")), LAYOUT, 0).write(CONTENT, DATA)
    return tmp_path / "there"


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    server = BlockServer(str(folder), HOST, SECRET)
    try:
        yield server.address
    finally:
        server.close()


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server of the secret that answers the first question of each connection so."""
    with socket.create_server((HOST, 0)) as listener, ThreadPoolExecutor() as threads:

        def serve(stream: socket.socket) -> None:
            with stream:
                greet_reader(stream, SECRET.encode(), soon())
                (length,) = NAME_LENGTH.unpack(receive(stream, NAME_LENGTH.size, soon()))
                receive(stream, length, soon())
                answer(stream)

        def accept() -> None:
            while True:
                try:
                    stream, _ = listener.accept()
                except OSError:
                    return
                threads.submit(serve, stream)

        threads.submit(accept)
        try:
            yield f"{HOST}:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def reading(tmp_path: Path, secret: str = SECRET, rank: int = 0) -> BlockFiles:
    return BlockFiles(Folder(str(tmp_path / "here")), LAYOUT, rank, secret)


def test_a_block_that_the_folder_has_not_is_fetched(folder: Path, tmp_path: Path) -> None:
    files = reading(tmp_path)
    with serving(folder) as address:
        for _ in range(3):
            assert files.read(CONTENT, len(DATA), address) == DATA
        assert files.read(OTHER, len(DATA), address) is None, "it is not there"
        assert files.read(CONTENT, len(DATA)) is None, "nobody is said to have it"
        assert reading(tmp_path, rank=1).read(CONTENT, len(DATA), address) is None, "each rank has its own"
        assert files.read(CONTENT, len(DATA), address) == DATA
    assert list((tmp_path / "here").iterdir()) == []


def test_a_block_that_the_folder_has_is_not_fetched(tmp_path: Path) -> None:
    files = reading(tmp_path)
    files.write(CONTENT, DATA)
    assert files.read(CONTENT, len(DATA), "127.0.0.1:1") == DATA
    (tmp_path / "here" / NAME).write_bytes(b"damaged")
    BlockFiles(Folder(str(tmp_path / "there")), LAYOUT, 0).write(CONTENT, DATA)
    with serving(tmp_path / "there") as address:
        assert files.read(CONTENT, len(DATA), address) == DATA, "the other one is whole"


def test_connections_are_used_again_one_for_each_thread(folder: Path, tmp_path: Path) -> None:
    files = reading(tmp_path)
    server = BlockServer(str(folder), HOST, SECRET)
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda _: files.read(CONTENT, len(DATA), server.address), range(40))) == {DATA}
    assert 1 <= len(server._places) <= 4
    server.close()
    again = BlockServer(str(folder), HOST, SECRET)  # of the same engine, at another port
    assert files.read(CONTENT, len(DATA), again.address) == DATA
    again.close()


def test_a_connection_that_was_closed_meanwhile_is_made_anew(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.offload.peers.answers.IDLE_SECONDS", 1.0)
    files = reading(tmp_path)
    server = BlockServer(str(folder), HOST, SECRET)
    for _ in range(2):
        assert files.read(CONTENT, len(DATA), server.address) == DATA
        deadline = soon()
        while server._places:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    server.close()


def test_few_idle_connections_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MAX_IDLE", 2)
    own = Peers(SECRET)
    with serving(folder) as one, serving(folder) as two, serving(folder) as three:
        for address in (one, two, three, three):
            assert own.fetch(address, NAME, len(DATA) + 100)
        assert [address for address, _ in own._idle] == [two, three]
        own.close()


@pytest.mark.parametrize("at", [0, 20, 50, -1])
def test_what_is_damaged_there_is_not_there(
    folder: Path, tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    data = bytearray((folder / NAME).read_bytes())
    data[at] ^= 1
    (folder / NAME).write_bytes(data)
    with serving(folder) as address:
        assert reading(tmp_path).read(CONTENT, len(DATA), address) is None
    assert "is damaged at 127.0.0.1:" in caplog.text and (folder / NAME).exists()


def test_another_blocks_file_is_damaged(folder: Path, tmp_path: Path) -> None:
    (folder / file_name(LAYOUT, OTHER, 0)).parent.mkdir(parents=True, exist_ok=True)
    os.link(folder / NAME, folder / file_name(LAYOUT, OTHER, 0))
    with serving(folder) as address:
        assert reading(tmp_path).read(OTHER, len(DATA), address) is None


def test_who_does_not_know_the_secret_is_refused(folder: Path, tmp_path: Path) -> None:
    with serving(folder) as address:
        assert reading(tmp_path, secret="another").read(CONTENT, len(DATA), address) is None
        assert reading(tmp_path).read(CONTENT, len(DATA), address) == DATA


def never(stream: socket.socket) -> None:
    stream.settimeout(60)
    stream.recv(1)  # until the reader has given up


def dribble(stream: socket.socket) -> None:
    stream.sendall(FILE_LENGTH.pack(1000))
    with pytest.raises(OSError):
        while True:
            stream.sendall(b"x")
            time.sleep(0.05)


def too_much(stream: socket.socket) -> None:
    stream.sendall(FILE_LENGTH.pack((1 << 32) - 1))
    never(stream)


def cut(stream: socket.socket) -> None:
    stream.sendall(FILE_LENGTH.pack(1000) + b"x")


@pytest.mark.parametrize("answer", [never, dribble, too_much, cut])
def test_who_does_not_answer_in_time_and_whole_is_left_alone(
    answer: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(peers, "AVOID_SECONDS", 3600.0)
    own = Peers(SECRET)
    with answering(answer) as address, serving(folder) as other:
        with monkeypatch.context() as patch, pytest.raises(OSError):
            patch.setattr(peers, "SECONDS", 0.3)
            own.fetch(address, NAME, 2000)
        for _ in range(100):
            assert own.fetch(address, NAME, 2000) is None, "others of its blocks do not wait"
        assert own.fetch(other, NAME, len(DATA) + 100), "others are asked"
        own._avoided = dict.fromkeys(own._avoided, 0.0)
        monkeypatch.setattr(peers, "SECONDS", 0.3)
        with pytest.raises(OSError):
            own.fetch(address, NAME, 2000)
    own.close()


def test_who_accepts_nothing_and_who_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "SECONDS", 0.3)
    monkeypatch.setattr(peers, "AVOID_SECONDS", 0.0)
    own = Peers(SECRET)
    with socket.create_server((HOST, 0), backlog=0) as silent:
        address = f"{HOST}:{silent.getsockname()[1]}"
        with ThreadPoolExecutor(4) as threads:
            errors = [each.exception() for each in [threads.submit(own.fetch, address, NAME, 1) for _ in range(4)]]
        assert all(isinstance(each, TimeoutError) for each in errors)
        assert {each.errno for each in errors if isinstance(each, OSError)} == {None}, "not the kernel's, minutes later"
    with pytest.raises(OSError):
        Peers(SECRET).fetch(address, NAME, 1)


def test_a_server_that_ends_in_the_middle(folder: Path, tmp_path: Path) -> None:
    """Each block is whole, or not there; nothing hangs."""
    files, server = reading(tmp_path), BlockServer(str(folder), HOST, SECRET)
    has_begun = threading.Event()

    def read(_: int) -> bytes | None:
        found = files.read(CONTENT, len(DATA), server.address)
        has_begun.set()
        return found

    with ThreadPoolExecutor(4) as threads:
        results = [threads.submit(read, number) for number in range(200)]
        has_begun.wait(60)
        server.close()
    found = [each.result() for each in results]
    assert DATA in found and None in found and set(found) == {DATA, None}
