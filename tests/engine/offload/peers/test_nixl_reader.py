"""Blocks come by NIXL from another process, whole and in time; or over TCP, or are computed. The
library is the real one, and UCX takes what it finds (shared memory), or TCP.
"""

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.offload.block_files import BlockFiles, Folder
from engine.offload.file_format import HEADER_BYTES
from engine.offload.peers import nixl_reader, peers
from engine.offload.peers.block_server import BlockServer
from engine.offload.peers.nixl_agent import Memory, NixlAgent, Reading
from engine.offload.peers.peers import Peers
from tests.engine.offload.peers.serving import Served, served_apart
from tests.engine.offload.peers.test_block_server import CONTENT, DATA, HOST, LAYOUT, NAME, SECRET, soon
from tests.engine.offload.peers.test_lent_memory import Plain
from tests.engine.support.nixl import needs_nixl
from tests.listeners import listeners_of

MOST_BYTES = HEADER_BYTES + len(DATA)
ALL_OF = [pytest.param(None, marks=pytest.mark.long), "tcp"]  # UCX_TLS: as between nodes


@pytest.fixture(autouse=True)
def reader_of_its_own() -> Iterator[None]:
    """Not the process's."""
    nixl_reader.nixl_reader.cache_clear()
    yield
    nixl_reader.nixl_reader.cache_clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    BlockFiles(Folder(str(tmp_path / "there")), LAYOUT, 0).write(CONTENT, DATA)
    return tmp_path / "there"


@pytest.fixture(params=ALL_OF)
def served(folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    if request.param is not None:
        monkeypatch.setenv("UCX_TLS", request.param)
    monkeypatch.setattr(peers, "SECONDS", 60.0)
    monkeypatch.setattr(nixl_reader, "SECONDS", 30.0)
    with served_apart(folder) as served:
        yield served


@pytest.fixture
def own(served: Served) -> Iterator[Peers]:
    own = Peers(SECRET, uses_nixl=True)
    yield own
    own.close()


def pool(own: Peers) -> nixl_reader.NixlReader:
    assert own._nixl is not None
    return own._nixl


@needs_nixl
def test_blocks_come_whole(served: Served, own: Peers, folder: Path) -> None:
    whole = (folder / NAME).read_bytes()
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: own.fetch(served.address, NAME, MOST_BYTES), range(40)))
    assert all(each == whole for each in found)
    assert served.num_served(40) == {"tcp": 0, "nixl": 40, "nixl_failed": 0}
    assert own.fetch(served.address, NAME.replace(".0", ".1"), MOST_BYTES) is None, "it is not there"
    assert 1 <= len(pool(own)._free) == pool(own)._num_memories <= 8


@needs_nixl
def test_a_process_has_one_agent(served: Served) -> None:
    """Which outlives an epoch: ended after a failure, it may take the process along."""
    readers = []
    for _ in range(2):
        own = Peers(SECRET, uses_nixl=True)
        assert own.fetch(served.address, NAME, MOST_BYTES)
        readers.append(pool(own))
        own.close()
    assert readers[0] is readers[1] and readers[0]._num_memories == 1


@needs_nixl
def test_what_is_damaged_there_is_not_there(served: Served, folder: Path, tmp_path: Path) -> None:
    files = BlockFiles(Folder(str(tmp_path / "here")), LAYOUT, 0, SECRET, uses_nixl=True)
    assert files.read(CONTENT, len(DATA), served.address) == DATA
    data = bytearray((folder / NAME).read_bytes())
    data[-1] ^= 1
    (folder / NAME).write_bytes(data)
    assert files.read(CONTENT, len(DATA), served.address) is None
    assert served.num_served(2)["nixl"] == 2


@needs_nixl
def test_who_does_not_know_the_secret_learns_of_no_agent(
    served: Served, monkeypatch: pytest.MonkeyPatch, own: Peers
) -> None:
    def meet(agent: NixlAgent, metadata: bytes) -> str:
        raise AssertionError("it has been told")

    with monkeypatch.context() as patch:
        patch.setattr(NixlAgent, "meet", meet)
        with pytest.raises(ConnectionError):
            Peers("another secret", uses_nixl=True).fetch(served.address, NAME, MOST_BYTES)
    assert own.fetch(served.address, NAME, MOST_BYTES)
    assert served.num_served(1)["nixl"] == 1


def begins(monkeypatch: pytest.MonkeyPatch, served: Served, number: int) -> None:
    """The server gets this signal when a transfer begins: it has said where, and nothing has been
    read.
    """
    begin = NixlAgent.begin_read

    def signalled(agent: NixlAgent, memory: Memory, name: str, address: int, num_bytes: int) -> Reading:
        pid = served.process.pid or 0
        os.kill(pid, number)
        # Threads that run on another core may get far before the signal gets to them.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        return begin(agent, memory, name, address, num_bytes)

    monkeypatch.setattr(NixlAgent, "begin_read", signalled)


@needs_nixl
@pytest.mark.parametrize("has_met", [False, True])
def test_a_server_that_is_killed_in_the_middle(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_met: bool
) -> None:
    """Before the first transfer has connected, or after others."""
    monkeypatch.setattr(nixl_reader, "SECONDS", 0.5)
    files = BlockFiles(Folder(str(tmp_path / "here")), LAYOUT, 0, SECRET, uses_nixl=True)
    if has_met:
        monkeypatch.setattr(nixl_reader, "SECONDS", 30.0)
        assert files.read(CONTENT, len(DATA), served.address) == DATA
        monkeypatch.setattr(nixl_reader, "SECONDS", 0.5)
    begins(monkeypatch, served, signal.SIGKILL)
    assert files.read(CONTENT, len(DATA), served.address) is None


@needs_nixl
@pytest.mark.parametrize("served", ["tcp"], indirect=True)
def test_memory_of_a_late_transfer_is_used_again_once_that_is_over(
    served: Served, own: Peers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By shared memory, who is read from need not run."""
    assert own.fetch(served.address, NAME, MOST_BYTES)
    reader = pool(own)
    (memory,) = reader._free
    with monkeypatch.context() as patch:
        patch.setattr(nixl_reader, "SECONDS", 0.2)
        patch.setattr(peers, "SECONDS", 0.5)
        begins(patch, served, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            own.fetch(served.address, NAME, MOST_BYTES)
    (name,) = reader._names.values()
    assert [late.memory for late in reader._late] == [memory] and not reader._free
    assert reader.take(name, MOST_BYTES) is None, "its blocks come over TCP for now"
    reader._avoided.clear()
    other = reader.take(name, MOST_BYTES)
    assert other is not None and other.address != memory.address
    reader.give_back(other)

    own._avoided.clear()
    reader._avoided = dict.fromkeys(reader._names.values(), soon() + 60)
    os.kill(served.process.pid or 0, signal.SIGCONT)
    assert own.fetch(served.address, NAME, MOST_BYTES), "over TCP"
    reader._avoided.clear()
    assert own.fetch(served.address, NAME, MOST_BYTES), "by NIXL"
    told = [text for text in caplog.messages if "NIXL" in text]
    assert len(told) == 1 and "come over TCP for now, and not by NIXL: a transfer is late" in told[0]
    deadline = soon()
    while reader._late:
        assert time.monotonic() < deadline and own.fetch(served.address, NAME, MOST_BYTES)
    assert memory in reader._free


@needs_nixl
def test_a_transfer_that_fails_is_made_over_tcp(
    served: Served, own: Peers, monkeypatch: pytest.MonkeyPatch, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        begin = NixlAgent.begin_read
        patch.setattr(NixlAgent, "begin_read", lambda agent, memory, name, *rest: begin(agent, memory, "nobody", *rest))
        for _ in range(2):
            assert own.fetch(served.address, NAME, MOST_BYTES) == (folder / NAME).read_bytes()
    assert served.num_served(3) == {"tcp": 2, "nixl": 0, "nixl_failed": 1}
    assert len([text for text in caplog.messages if "not by NIXL" in text]) == 1
    pool(own)._avoided.clear()
    assert own.fetch(served.address, NAME, MOST_BYTES)
    assert served.num_served(4)["nixl"] == 1


def cut(pid: int) -> None:
    """All connections between this process and that one, as a fault of the network does."""
    ports = {listener.port for each in (pid, os.getpid()) for listener in listeners_of(each)}
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(descriptor))) as stream:  # of those that are any
            if stream.family == socket.AF_INET and {stream.getsockname()[1], stream.getpeername()[1]} & ports:
                stream.shutdown(socket.SHUT_RDWR)


@needs_nixl
def test_blocks_come_by_nixl_again_after_a_fault_of_the_network(served: Served, own: Peers, folder: Path) -> None:
    """UCX's connection stays broken."""
    whole = (folder / NAME).read_bytes()
    assert own.fetch(served.address, NAME, MOST_BYTES) == whole
    cut(served.process.pid or 0)
    reader, deadline = pool(own), soon()
    while not reader._avoided:  # UCX has not noticed
        assert own.fetch(served.address, NAME, MOST_BYTES) == whole and time.monotonic() < deadline
    num_failed = served.num_served(0)["nixl_failed"]
    reader._avoided = dict.fromkeys(reader._avoided, 0.0)  # a minute later
    for _ in range(3):
        assert own.fetch(served.address, NAME, MOST_BYTES) == whole
        assert not reader._avoided and served.num_served(0)["nixl_failed"] == num_failed


class Slow(Plain):
    """Whose transfers are over, and have failed, when the test says so."""

    def __init__(self) -> None:
        self.state = "PROC"
        self.told: list[str] = []

    def meet(self, metadata: bytes) -> str:
        self.told.append("met")
        return metadata.decode()

    def forget(self, name: str) -> None:
        self.told.append("forgotten")

    def begin_read(self, memory: Memory, name: str, address: int, num_bytes: int) -> Reading:
        def look(_: object) -> str:
            return self.state

        library = SimpleNamespace(transfer=look, check_xfer_state=look, release_xfer_handle=lambda _: None)
        return Reading(library, name, None, memory)


def test_a_server_is_not_met_anew_as_long_as_a_transfer_of_its_may_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl_reader, "SECONDS", 0.0)
    agent = Slow()
    reader = nixl_reader.NixlReader(agent)
    name = reader.meet(b"server")
    assert name == "server"
    memory = reader.take(name, 10)
    assert memory is not None
    assert reader.read(memory, name, 0, 10, soon()) is None and reader.take(name, 10) is None
    reader._avoided[name] = 0.0  # a minute later
    other = reader.take(name, 10)
    assert other is not None and agent.told == ["met"]
    reader.give_back(other)
    agent.state = "ERR"
    reader._avoided[name] = 0.0
    assert reader.take(name, 10) is not None and agent.told == ["met", "forgotten", "met"]
    assert not reader._late and not reader._avoided


@pytest.mark.parametrize("who", ["reader", "server", "both"])
def test_without_the_library_blocks_come_over_tcp(
    who: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "nixl._api", None)
    with caplog.at_level(logging.WARNING, logger="squadron.offload"):
        server = BlockServer(str(folder), HOST, SECRET, uses_nixl=who != "reader")
        own = Peers(SECRET, uses_nixl=who != "server")
        for _ in range(3):
            assert own.fetch(server.address, NAME, MOST_BYTES) == (folder / NAME).read_bytes()
    own.close()
    server.close()
    assert server.answers.num_served["tcp"] == 3
    assert len(caplog.messages) == (2 if who == "both" else 1)
    assert all("and not by NIXL" in text and "squadron-serve[nixl]" in text for text in caplog.messages)
