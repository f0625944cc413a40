"""What a reader asks of a server that has NIXL, or says so."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.offload.block_files import BlockFiles, Folder
from engine.offload.peers import lent_memory
from engine.offload.peers.block_server import BlockServer
from engine.offload.peers.connection import MOST_METADATA, Connection
from engine.offload.peers.nixl_agent import Memory, NixlAgent, NixlFailed, Reading
from engine.offload.peers.nixl_reader import NixlReader
from engine.offload.peers.wire import ADDRESS, AGENT, FILE_LENGTH, HAS_FAILED, LENT, NAME_LENGTH, greet_reader, receive
from tests.engine.offload.peers.test_block_server import CONTENT, DATA, HOST, LAYOUT, NAME, SECRET, ask, greeted, soon
from tests.engine.offload.peers.test_lent_memory import ADDRESS as LENT_AT
from tests.engine.offload.peers.test_lent_memory import Plain
from tests.engine.support.nixl import needs_nixl


class Able(Plain):
    """That meets everybody, and whose transfers fail."""

    def meet(self, metadata: bytes) -> str:
        return metadata.decode()

    def begin_read(self, memory: Memory, name: str, address: int, num_bytes: int) -> Reading:
        raise NixlFailed(f"{name} at {address}")

    def move_on(self) -> None:
        pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    BlockFiles(Folder(str(tmp_path)), LAYOUT, 0).write(CONTENT, DATA)
    return tmp_path


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BlockServer]:
    monkeypatch.setattr(lent_memory, "NixlAgent", Able)
    server = BlockServer(str(folder), HOST, SECRET, uses_nixl=True)
    yield server
    server.close()


@contextmanager
def saying(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that answers a reader's question for its agent so."""
    with socket.create_server((HOST, 0)) as listener, ThreadPoolExecutor(1) as thread:

        def serve() -> None:
            stream, _ = listener.accept()
            with stream:
                greet_reader(stream, SECRET.encode(), soon())
                (length,) = NAME_LENGTH.unpack(receive(stream, NAME_LENGTH.size, soon()))
                assert receive(stream, length, soon()) == AGENT.encode()
                answer(stream)

        serving = thread.submit(serve)
        yield f"{HOST}:{listener.getsockname()[1]}"
        serving.result(10)


def test_metadata_is_bounded() -> None:
    def too_much(stream: socket.socket) -> None:
        stream.sendall(FILE_LENGTH.pack(MOST_METADATA + 1))

    with saying(too_much) as address, pytest.raises(ConnectionError, match=f"it sends {MOST_METADATA + 1} bytes"):
        Connection(address, SECRET.encode(), soon(), NixlReader(Able()))


@needs_nixl
def test_what_is_no_metadata_is_no_agent(caplog: pytest.LogCaptureFixture) -> None:
    def nonsense(stream: socket.socket) -> None:
        stream.sendall(FILE_LENGTH.pack(1) + b"x")
        (length,) = NAME_LENGTH.unpack(receive(stream, NAME_LENGTH.size, soon()))
        assert receive(stream, length, soon()) == NAME.encode(), "as over TCP"
        stream.sendall(FILE_LENGTH.pack(1) + b"y")

    with saying(nonsense) as address:
        connection = Connection(address, SECRET.encode(), soon(), NixlReader(NixlAgent()))
        assert connection.ask(NAME, 1, soon()) == b"y"
        connection.close()
    assert "its agent cannot be met" in caplog.text


def test_a_server_says_where_a_block_is_and_has_its_memory_back(server: BlockServer, folder: Path) -> None:
    whole = (folder / NAME).read_bytes()
    with greeted(server) as stream:
        assert ask(stream, AGENT.encode()) == b"nowhere"
        name = f"{LENT}{NAME}".encode()
        for _ in range(2):
            stream.sendall(NAME_LENGTH.pack(len(name)) + name)
            (num_bytes,) = FILE_LENGTH.unpack(receive(stream, FILE_LENGTH.size, soon()))
            (address,) = ADDRESS.unpack(receive(stream, ADDRESS.size, soon()))
            assert (num_bytes, address) == (len(whole), LENT_AT), "the first part is free again"
            assert server.answers._memory is not None and server.answers._memory._memory.view[:num_bytes] == whole
            stream.sendall(HAS_FAILED)
        assert ask(stream, f"{LENT}lock".encode()) == b"", "nothing but blocks"
        assert ask(stream, NAME.encode()) == whole
    assert server.answers.num_served == {"tcp": 1, "nixl": 0, "nixl_failed": 2}


def test_what_finds_no_room_or_fails_comes_over_tcp(server: BlockServer, folder: Path) -> None:
    whole = (folder / NAME).read_bytes()
    reader = NixlReader(Able())
    connection = Connection(server.address, SECRET.encode(), soon(), reader)
    assert server.answers._memory is not None
    with server.answers._memory.lent(lent_memory.NUM_BYTES):
        assert connection.ask(NAME, len(whole), soon()) == whole
    assert server.answers.num_served == {"tcp": 1, "nixl": 0, "nixl_failed": 0}
    assert connection.ask(NAME, len(whole), soon()) == whole
    assert server.answers.num_served == {"tcp": 2, "nixl": 0, "nixl_failed": 1}
    assert connection.ask(NAME.replace(".0", ".1"), len(whole), soon()) is None
    connection.close()
    assert len(reader._free) == reader._num_memories == 1
