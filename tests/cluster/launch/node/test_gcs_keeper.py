"""When the keeper starts a GCS again, and when not; with processes that bear Ray's names."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from threading import Event, Thread

import pytest

from cluster.launch.node.gcs_keeper import MOST_STARTS, GcsCommand, _parts, gcs_at, keep, logger
from engine.errors import InvalidConfig
from tests.cluster.sockets.descriptors import beyond_select

STORED = {"RAY_gcs_storage": "rocksdb"}


class Node:
    """A shell named gcs_server that waits for its input to end, and one named raylet."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self._folder, self._environment = folder, environment
        self.gcs = self._start("gcs_server", f"--gcs_server_port={self.port}")
        self.raylet = self._start("raylet")

    def _start(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        program = self._folder / name
        shutil.copy(os.path.realpath("/bin/sh"), program)
        command = [program, "-c", "read line", name, f"--session-name={self._folder}", *arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | self._environment)

    def close(self) -> None:
        for process in (self.gcs, self.raylet):
            process.kill()
            process.communicate()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, STORED)
    yield node
    node.close()


def test_the_gcs_of_a_port_is_found(node: Node) -> None:
    assert gcs_at(node.port) == node.gcs.pid
    command = GcsCommand.of(node.gcs.pid)
    command.check()
    assert command.arguments[-1] == f"--gcs_server_port={node.port}"
    assert command.environment["RAY_gcs_storage"] == "rocksdb" and command.has_raylet()
    with pytest.raises(InvalidConfig, match="no GCS of this user is at port 1: `ray start --head --port=1` starts one"):
        gcs_at(1)


def keeping(node: Node) -> "Future[None]":
    """`keep` in a thread, which has read what it needs of the GCS."""
    kept: Future[None] = Future()

    def run() -> None:
        try:
            kept.set_result(keep(node.gcs.pid))
        except (SystemExit, ValueError) as error:
            kept.set_exception(error)

    is_watching = Event()
    logger.setLevel("INFO")
    logger.addFilter(lambda record: is_watching.set() is None)
    Thread(target=run, daemon=True).start()
    is_watching.wait()
    logger.filters.clear()
    return kept


def test_one_that_dies_again_and_again_is_given_up(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """The new ones have no input, and end at once."""
    caplog.set_level("INFO")
    kept = keeping(node)
    node.gcs.kill()
    with pytest.raises(SystemExit, match=f"the GCS died {MOST_STARTS} times within 60 s"):
        kept.result()
    assert len([line for line in caplog.messages if "was started again as process" in line]) == MOST_STARTS


def test_nothing_is_started_once_ray_has_ended(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """As `ray stop` does it: the raylet first."""
    caplog.set_level("INFO")
    kept = keeping(node)
    node.raylet.kill()
    node.raylet.wait()
    node.gcs.kill()
    kept.result()
    assert not [line for line in caplog.messages if "started again" in line]


def test_a_keeper_with_many_open_files_sees_that_it_dies(node: Node) -> None:
    with beyond_select():
        kept = keeping(node)
        node.raylet.kill()
        node.raylet.wait()
        node.gcs.kill()
        kept.result()


def test_a_gcs_in_memory_is_not_kept() -> None:
    command = GcsCommand(("gcs_server", "--session-name=s", "--gcs_server_port=6379"), {}, "/")
    with pytest.raises(InvalidConfig, match="set RAY_gcs_storage=rocksdb and RAY_gcs_storage_path=FOLDER"):
        command.check()
    GcsCommand((*command.arguments, "--redis_address=10.0.0.9"), {}, "/").check()


def test_a_port_of_its_own_choice_would_be_another_one() -> None:
    command = GcsCommand(("gcs_server", "--session-name=s", "--gcs_server_port=0"), STORED, "/")
    with pytest.raises(InvalidConfig, match="give `ray start --head` a --port"):
        command.check()


def test_a_raylet_that_ends_while_it_is_looked_at_is_gone() -> None:
    """Opened before it ended, and read after: which another descriptor of the open file does."""
    with (
        subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as raylet,
        Path(f"/proc/{raylet.pid}/cmdline").open() as file,
    ):
        raylet.kill()
        raylet.wait()
        assert _parts(Path(f"/proc/self/fd/{file.fileno()}")) == []
