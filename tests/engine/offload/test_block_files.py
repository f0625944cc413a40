"""Files of blocks: whole or not at all, and whatever is damaged is not there."""

import logging
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import InvalidConfig
from engine.offload.block_files import BlockFiles, Folder
from engine.offload.file_format import file_name
from engine.offload.shared_folder import SharedFolder, shared_folder

CONTENT, OTHER = bytes(range(16)), bytes(16)
DATA = os.urandom(5000)
LAYOUT = "fp_1-tp1pp1"


def make_files(folder: Path, rank: int = 0) -> BlockFiles:
    return BlockFiles(Folder(f"file://{folder}"), LAYOUT, rank)


def test_what_is_written_is_read_by_its_rank_and_layout_alone(tmp_path: Path) -> None:
    make_files(tmp_path).write(CONTENT, DATA)
    assert make_files(tmp_path).read(CONTENT, 5000) == DATA
    assert make_files(tmp_path).read(OTHER, 5000) is None
    assert make_files(tmp_path, rank=1).read(CONTENT, 5000) is None
    assert BlockFiles(Folder(str(tmp_path)), "fp_2-tp1pp1", 0).read(CONTENT, 5000) is None


@pytest.mark.parametrize("name", ["a::b", "zip::a", "http://a", "a*[b]?#c%20"])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_path_may_have_any_name(tmp_path: Path, scheme: str, name: str) -> None:
    """Also one that fsspec takes for a chain of filesystems."""
    folder = Folder(f"{scheme}{tmp_path}/{name}")
    BlockFiles(folder, LAYOUT, 0).write(CONTENT, DATA)
    assert [file.name for file in folder.files()] == [file_name(LAYOUT, CONTENT, 0)]
    assert (tmp_path / name / file_name(LAYOUT, CONTENT, 0)).is_file()


@pytest.mark.parametrize("address", ["a..b:1", "nowhere", "127.0.0.1:99999"])
def test_at_an_address_that_is_none_is_nothing(tmp_path: Path, address: str, caplog: pytest.LogCaptureFixture) -> None:
    files = BlockFiles(Folder(str(tmp_path)), LAYOUT, 0, "secret")
    assert files.read(CONTENT, 5000, address) is None
    assert f"cannot be fetched from {address}: " in caplog.text


def test_files_are_the_users_own(tmp_path: Path) -> None:
    make_files(tmp_path / "blocks").write(CONTENT, DATA)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "blocks").rglob("*") if path.is_file()}
    assert (modes, (tmp_path / "blocks").stat().st_mode & 0o777) == ({0o600}, 0o700)


@pytest.mark.parametrize("damage", ["a bit", "cut", "empty", "longer", "another's"])
def test_what_is_damaged_is_removed_and_told_once(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    files, path = make_files(tmp_path), tmp_path / file_name(LAYOUT, CONTENT, 0)
    for _ in range(2):
        files.write(CONTENT, DATA)
        files.write(OTHER, DATA)
        whole = path.read_bytes()
        damaged = {
            "a bit": bytes([*whole[:3000], whole[3000] ^ 4, *whole[3001:]]),
            "cut": whole[:-1],
            "empty": b"",
            "longer": whole + b"\0",
            "another's": (tmp_path / file_name(LAYOUT, OTHER, 0)).read_bytes(),
        }
        path.write_bytes(damaged[damage])
        with caplog.at_level(logging.WARNING, logger="squadron.offload"):
            assert files.read(CONTENT, 5000) is None
        assert not path.exists()
    assert len(caplog.messages) == 1 and CONTENT.hex() in caplog.text


def test_a_file_of_other_blocks_size_is_damaged(tmp_path: Path) -> None:
    files = make_files(tmp_path)
    files.write(CONTENT, DATA)
    assert files.read(CONTENT, 4999) is None


def test_what_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = make_files(tmp_path)
    (tmp_path / LAYOUT).write_text("in the way")
    files.write(CONTENT, DATA)
    files.write(OTHER, DATA)
    assert len(caplog.messages) == 1 and "cannot be written" in caplog.text


WRITER = """
import sys
from pathlib import Path
from tests.engine.offload.test_block_files import make_files
files = make_files(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    for number in range(20):
        files.write(bytes([number]) * 16, bytes([number]) * 500_000)
"""


def test_a_writer_that_is_killed_leaves_whole_files(tmp_path: Path) -> None:
    files = make_files(tmp_path)
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
            while files.read(bytes([7]) * 16, 500_000) is None:
                pass
            writer.send_signal(signal.SIGKILL)
        found = [files.read(bytes([number]) * 16, 500_000) for number in range(20)]
        assert all(data in (None, bytes([number]) * 500_000) for number, data in enumerate(found))
        assert found[7] is not None


def test_folders_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidConfig, match=r"kv_offloading_path=.*/file/blocks: Not a directory"):
        Folder(f"{tmp_path}/file/blocks")
    with pytest.raises(InvalidConfig, match="kv_offloading_path=nowhere://x"):
        Folder("nowhere://x")


def test_an_object_store() -> None:
    """Of fsspec's kinds, the one in memory: whole objects, no renames."""
    files = BlockFiles(Folder("memory://bucket/blocks"), LAYOUT, 0)
    files.write(CONTENT, DATA)
    assert files.read(CONTENT, 5000) == DATA
    folder = Folder("memory://bucket/blocks")
    assert [file.name for file in folder.files()] == [file_name(LAYOUT, CONTENT, 0)]
    folder.remove(file_name(LAYOUT, CONTENT, 0))
    folder.remove(file_name(LAYOUT, CONTENT, 0))
    assert files.read(CONTENT, 5000) is None


@pytest.fixture
def left() -> Iterator[SharedFolder]:
    held = SharedFolder.hold(shared_folder(secrets.token_hex(8)))
    yield held
    held.leave()


def test_what_an_engine_leaves_is_in_a_folder_of_its_own(left: SharedFolder, tmp_path: Path) -> None:
    BlockFiles(Folder(str(tmp_path)), LAYOUT, 0, left=Folder(str(left.path))).write(CONTENT, DATA)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    for files in (make_files(tmp_path), BlockFiles(None, LAYOUT, 0)):
        assert files.read(CONTENT, 5000) is None
        for place in (str(left.path), f"127.0.0.1:1{left.path}"):
            assert files.read(CONTENT, 5000, place) == DATA
            assert files.read(OTHER, 5000, place) is None


def test_what_is_damaged_there_is_removed(left: SharedFolder, caplog: pytest.LogCaptureFixture) -> None:
    files, path = BlockFiles(None, LAYOUT, 0, left=Folder(str(left.path))), left.path / file_name(LAYOUT, CONTENT, 0)
    files.write(CONTENT, DATA)
    path.write_bytes(path.read_bytes()[:-1])
    assert files.read(CONTENT, 5000, str(left.path)) is None
    assert not path.exists() and CONTENT.hex() in caplog.text


def test_no_other_folder_is_read_than_one_in_shared_memory(tmp_path: Path) -> None:
    make_files(tmp_path).write(CONTENT, DATA)
    assert BlockFiles(None, LAYOUT, 0).read(CONTENT, 5000, str(tmp_path)) is None
    BlockFiles(None, LAYOUT, 0).write(CONTENT, DATA)  # nowhere
