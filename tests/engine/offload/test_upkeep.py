"""The folder is bounded, and the driver knows what is in it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.offload.block_files import BlockFiles, Folder, StoredFile
from engine.offload.file_format import file_name
from engine.offload.upkeep import ABANDONED_SECONDS, Upkeep

LAYOUT, OLD = "fp_1-tp1pp1", "fp_0-tp1pp1"
SIZE = 1000


def contents(count: int) -> list[bytes]:
    return [bytes([number]) * 16 for number in range(count)]


def filled(folder: Path, layout: str, count: int, first: float) -> BlockFiles:
    """Files that were last used at `first`, `first` + 1, ..."""
    files = BlockFiles(Folder(str(folder)), layout, 0)
    for number, content in enumerate(contents(count)):
        files.write(content, bytes(SIZE))
        os.utime(folder / file_name(layout, content, 0), (first + number, first + number))
    return files


def make_upkeep(folder: Path, most_bytes: int = 1 << 20) -> Upkeep:
    return Upkeep(Folder(str(folder)), LAYOUT, most_bytes)


def test_it_knows_what_is_there_of_its_layout(tmp_path: Path) -> None:
    filled(tmp_path, LAYOUT, 3, 1e6)
    filled(tmp_path, OLD, 5, 1e6)
    upkeep = make_upkeep(tmp_path)
    upkeep.start()
    assert upkeep.known.contents == set(contents(3))
    upkeep.stop()
    upkeep.stop()


def test_what_was_used_the_longest_ago_goes_first_whoever_wrote_it(tmp_path: Path) -> None:
    filled(tmp_path, OLD, 5, 1e6)
    files = filled(tmp_path, LAYOUT, 5, 2e6)
    assert files.read(contents(1)[0], SIZE) is not None, "which uses it"
    upkeep = make_upkeep(tmp_path, most_bytes=3 * (SIZE + 40))
    upkeep.look()
    assert upkeep.known.contents == {contents(5)[number] for number in (0, 3, 4)}
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == 3


def test_files_that_nobody_will_finish_are_removed(tmp_path: Path) -> None:
    filled(tmp_path, LAYOUT, 1, 1e9)
    block = tmp_path / file_name(LAYOUT, contents(1)[0], 0)
    new, old = (block.with_name(f"{block.name}.{node}.17.1.tmp") for node in ("new", "old"))
    new.write_text("")
    old.write_text("")
    long_ago = new.stat().st_mtime - ABANDONED_SECONDS - 100
    os.utime(old, (long_ago, long_ago))
    make_upkeep(tmp_path).look()
    assert new.exists() and not old.exists()


def test_files_that_are_no_blocks_are_not_touched(tmp_path: Path) -> None:
    """Somebody may have named a folder that has more in it."""
    filled(tmp_path, LAYOUT, 3, 2e6)
    others = [
        tmp_path / name
        for name in (
            "model.safetensors",
            "notes.tmp",
            f"{LAYOUT}/README",
            f"{LAYOUT}/00/{'0' * 32}.0.bak",
            f"{LAYOUT}/00/{'0' * 32}.0/x",
            f"backup/{file_name(LAYOUT, contents(1)[0], 0)}",
        )
    ]
    (tmp_path / file_name(LAYOUT, contents(1)[0], 0)).unlink()
    for other in others:
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes(bytes(100 * SIZE))
        os.utime(other, (1e6, 1e6))
    upkeep = make_upkeep(tmp_path, most_bytes=2 * (SIZE + 40))
    upkeep.look()
    assert [other for other in others if not other.exists()] == []
    assert upkeep.known.contents == set(contents(3)[1:]), "nor do they count"


def test_distrusted_blocks_are_removed(tmp_path: Path) -> None:
    filled(tmp_path, LAYOUT, 2, 1e6)
    upkeep = make_upkeep(tmp_path)
    upkeep.look()
    upkeep.known.distrust(contents(1)[0])
    upkeep.known.distrust(bytes(15) + b"x")
    assert upkeep.known.contents == {contents(2)[1]}
    upkeep.look()
    assert upkeep.known.contents == {contents(2)[1]}
    assert not (tmp_path / file_name(LAYOUT, contents(1)[0], 0)).exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_distrusted_block_that_a_rank_writes_later_is_not_found_and_removed_again(tmp_path: Path, rank: int) -> None:
    """It was queued when the block was distrusted, for a folder that takes long."""
    filled(tmp_path, LAYOUT, 2, 1e6)
    upkeep, (wrong, right) = make_upkeep(tmp_path), contents(2)
    upkeep.look()
    upkeep.known.distrust(wrong)
    upkeep.look()
    files = BlockFiles(Folder(str(tmp_path)), LAYOUT, rank)
    for _ in range(2):
        files.write(wrong, bytes(SIZE))
        upkeep.look()
        assert upkeep.known.contents == {right}
        assert files.read(wrong, SIZE) is None, "nor do other engines find it"


def test_what_was_stored_or_distrusted_while_the_folder_was_listed_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, LAYOUT, 3, 1e6)
    upkeep = make_upkeep(tmp_path)
    upkeep.look()
    first, second, third, stored = contents(4)
    files = Folder.files

    def meanwhile(self: Folder) -> Iterator[StoredFile]:
        yield from files(self)
        upkeep.known.contents.add(stored)
        upkeep.known.distrust(first)

    monkeypatch.setattr(Folder, "files", meanwhile)
    upkeep.look()
    assert upkeep.known.contents == {second, third, stored}
    monkeypatch.setattr(Folder, "files", files)
    upkeep.look()
    assert upkeep.known.contents == {second, third}, "nor was it written after all"
    assert not (tmp_path / file_name(LAYOUT, first, 0)).exists()


def test_a_folder_that_cannot_be_listed_is_believed_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, LAYOUT, 2, 1e6)
    upkeep = make_upkeep(tmp_path)
    upkeep.look()
    monkeypatch.setattr(Folder, "files", lambda self: 1 / 0)
    upkeep.look()
    assert upkeep.known.contents == set(contents(2)) and "cannot be listed" in caplog.text
