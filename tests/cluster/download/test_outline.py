"""A model without its numbers, from a store that breaks off."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.download.outline import make_outline
from cluster.download.store import Interrupted, RemoteFile
from engine.errors import InvalidConfig
from parallel.spec.stored import INDEX_FILE

HEADER = json.dumps({"a": {"dtype": "F32", "shape": [250_000], "data_offsets": [0, 1_000_000]}}).encode()
WEIGHTS = len(HEADER).to_bytes(8, "little") + HEADER + bytes(range(1, 251)) * 4000


class Shelf:
    """A store that gives at most `most` bytes a call, and says then that it broke off."""

    title = "shelf"

    def __init__(self, contents: dict[str, bytes], most: int = 1 << 30) -> None:
        self._contents = contents
        self._most = most
        self.num_read = 0

    def files(self) -> tuple[RemoteFile, ...]:
        return tuple(RemoteFile(name, len(data), "etag", None) for name, data in self._contents.items())

    def pieces(self, file: RemoteFile, start: int, stop: int) -> Iterator[bytes]:
        piece = self._contents[file.name][start : min(stop, start + self._most)]
        self.num_read += len(piece)
        yield piece
        if start + len(piece) < stop:
            raise Interrupted("the line is dead")

    def tells_digest(self, file: RemoteFile) -> bool:
        return True

    def place(self, file: RemoteFile) -> Path:
        raise AssertionError

    def folder(self, files: tuple[RemoteFile, ...]) -> Path:
        raise AssertionError

    def cached(self) -> Path | None:
        raise AssertionError


@pytest.mark.parametrize("most", [1 << 30, 150_000])
def test_weights_have_their_size_and_only_their_header(tmp_path: Path, most: int) -> None:
    store = Shelf({"config.json": b"{}", "model.safetensors": WEIGHTS, "code.py": b"x"}, most)
    make_outline(store, tmp_path / "outline", print, has_weights=True)
    weights = tmp_path / "outline" / "model.safetensors"
    assert weights.stat().st_size == len(WEIGHTS)
    found = weights.read_bytes()
    assert found.startswith(WEIGHTS[: 8 + len(HEADER)]) and not any(found[8 + len(HEADER) :])
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.json", "model.safetensors", "outline"]
    assert store.num_read < len(WEIGHTS) / 3


def test_what_does_not_come_is_an_error_and_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.download.transfer.FIRST_WAIT_SECONDS", 0.0)
    with pytest.raises(InvalidConfig, match=r"shelf: config.json has 0 of 2 bytes: the line is dead"):
        make_outline(Shelf({"config.json": b"{}"}, 0), tmp_path / "outline", print, has_weights=False)
    assert list(tmp_path.iterdir()) == []


class Closed(Shelf):
    """Of which weights may not be read."""

    num_asked = 0

    def pieces(self, file: RemoteFile, start: int, stop: int) -> Iterator[bytes]:
        if file.name.endswith(".safetensors"):
            self.num_asked += 1
            hashlib.sha256(bytes(4 << 20))  # longer than it takes to ask for another one
            raise InvalidConfig(f"{file.name} may not be read")
        yield from super().pieces(file, start, stop)


def test_after_one_file_that_cannot_be_had_no_others_are_asked_for(tmp_path: Path) -> None:
    """But those that are on their way."""
    names = [f"model-{number}.safetensors" for number in range(3000)]
    index = json.dumps({"weight_map": {name: name for name in names}}).encode()
    store = Closed({"config.json": b"{}", INDEX_FILE: index} | dict.fromkeys(names, WEIGHTS))
    with pytest.raises(InvalidConfig, match="may not be read"):
        make_outline(store, tmp_path / "outline", print, has_weights=True)
    assert store.num_asked < len(names)
    assert list(tmp_path.iterdir()) == []
