"""The folder in shared memory is there for as long as an engine is, however engines end."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

import pytest

from engine.errors import InvalidConfig
from engine.offload.block_files import Folder
from engine.offload.shared_folder import BEGINNING_SECONDS, LOCK, SharedFolder, is_shared, shared_folder


@pytest.fixture
def uri() -> Iterator[str]:
    uri = shared_folder(secrets.token_hex(8))
    yield uri
    if Path(uri).is_symlink():
        Path(uri).unlink()
    rmtree(uri, ignore_errors=True)


def test_the_last_one_removes_it(uri: str) -> None:
    assert is_shared(uri) and not is_shared("/dev/shm/blocks") and not is_shared("s3://bucket/blocks")
    one, two = SharedFolder.hold(uri), SharedFolder.hold(uri)
    assert Path(uri).stat().st_mode & 0o777 == 0o700
    Folder(uri).write("layout/00/block.0", b"data")
    one.leave()
    one.leave()
    assert Folder(uri).read("layout/00/block.0") == b"data"
    two.leave()
    assert not Path(uri).exists()


def test_what_is_written_after_the_last_one_has_left_stays_nowhere(uri: str) -> None:
    held, folder = SharedFolder.hold(uri), Folder(uri)
    held.leave()
    with pytest.raises(FileNotFoundError):
        folder.write("layout/00/block.0", b"data")
    assert not Path(uri).exists()


HOLDER = """
import sys
from engine.offload.shared_folder import SharedFolder
held = SharedFolder.hold(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_the_next_start_removes_what_a_killed_one_left_and_nothing_else(uri: str) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, uri], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        Folder(uri).write("layout/00/block.0", b"data")
        other = SharedFolder.hold(f"{uri}-other")
        other.leave()
        assert Path(uri).exists(), "its engine lives"
        holder.send_signal(signal.SIGKILL)
    assert Path(uri).exists()
    again = SharedFolder.hold(uri)
    assert Folder(uri).read("layout/00/block.0") == b"data", "an engine that starts again finds it"
    again.leave()
    Path(uri).mkdir()
    Path(uri, LOCK).touch()  # as a killed one leaves it
    SharedFolder.hold(f"{uri}-other").leave()
    assert not Path(uri).exists()


def test_a_folder_that_is_being_made_is_left_alone_for_a_while(uri: str) -> None:
    Path(uri).mkdir()
    SharedFolder.hold(f"{uri}-other").leave()
    assert Path(uri).exists()
    long_ago = time.time() - 2 * BEGINNING_SECONDS
    os.utime(uri, (long_ago, long_ago))
    SharedFolder.hold(f"{uri}-other").leave()
    assert not Path(uri).exists()


def test_it_is_nobody_elses(uri: str, tmp_path: Path) -> None:
    Path(uri).symlink_to(tmp_path)
    with pytest.raises(InvalidConfig, match="is another user's"):
        SharedFolder.hold(uri)
    assert list(tmp_path.iterdir()) == []


def test_it_takes_half_of_what_there_is_at_most(uri: str) -> None:
    held = SharedFolder.hold(uri)
    room = os.statvfs(uri)
    assert held.most_bytes(1000) == 1000
    assert held.most_bytes(1 << 60) == room.f_blocks * room.f_frsize // 2
    held.leave()


def test_it_is_known_when_others_have_read_of_it(uri: str) -> None:
    held, folder = SharedFolder.hold(uri), Folder(uri)
    folder.write("layout/00/block.0", b"data")
    os.utime(uri, (1, 1))
    folder.write("layout/00/other.0", b"data")
    assert held.last_read == 1
    folder.read("layout/00/missing.0")
    assert held.last_read > 1
    held.leave()
