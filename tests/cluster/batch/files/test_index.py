"""Where the lines of a file are."""

import hashlib
from itertools import chain
from pathlib import Path

import pytest

from cluster.batch.files import index as index_module
from cluster.batch.files.index import CHUNK_LINES, lines_of, read_index
from cluster.batch.files.place import Place
from engine.errors import InvalidRequest


def indexed(path: Path, data: bytes) -> list[list[bytes]]:
    """The lines of each chunk."""
    path.write_bytes(data)
    place = Place.at(str(path))
    index = read_index(place, 10_000)
    assert index.digest == hashlib.sha256(data).hexdigest()
    chunks = [lines_of(place.part(chunk.offset, chunk.length)) for chunk in index.chunks]
    assert [len(lines) for lines in chunks] == [chunk.num_lines for chunk in index.chunks]
    firsts = [sum(map(len, chunks[:number])) for number in range(len(chunks))]
    assert firsts == [chunk.first for chunk in index.chunks]
    assert index.num_lines == sum(map(len, chunks))
    return chunks


@pytest.mark.parametrize("data", [b"", b"\n", b" \r\n\t\n"])
def test_nothing(tmp_path: Path, data: bytes) -> None:
    assert indexed(tmp_path / "in", data) == []


@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n \n"])
def test_lines(tmp_path: Path, end: bytes) -> None:
    lines = [b"line %d" % number for number in range(2 * CHUNK_LINES + 1)]
    chunks = indexed(tmp_path / "in", b"\n\n" + b"\n".join(lines) + end)
    assert [line for chunk in chunks for line in chunk] == lines
    assert len(chunks) == 3


@pytest.mark.parametrize(("data", "lines"), [(b"", []), (b"\r\n", []), (b"1\r\n2", [b"1\r", b"2"])])
def test_a_byte_order_mark_is_of_no_line(tmp_path: Path, data: bytes, lines: list[bytes]) -> None:
    """Nor are those of files that were joined."""
    marked = b"\xef\xbb\xbf" + data
    assert list(chain.from_iterable(indexed(tmp_path / "in", marked))) == lines
    assert list(chain.from_iterable(indexed(tmp_path / "in", marked + b"\n" + marked))) == lines + lines


def test_chunks_are_bounded_in_bytes(tmp_path: Path) -> None:
    lines = [b"x" * (3 << 20), b"y", b"z" * (9 << 20), b"a", b"b"]
    chunks = indexed(tmp_path / "in", b"\n".join(lines))
    assert chunks == [lines[:2], lines[2:3], lines[3:]]


@pytest.mark.parametrize("blank", [b"\n", b" " * 999 + b"\n"])
def test_blank_lines_before_others_are_in_no_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blank: bytes
) -> None:
    """They would make a chunk too long for a line."""
    monkeypatch.setattr(index_module, "CHUNK_BYTES", 1 << 13)
    many = blank * (index_module.CHUNK_BYTES // len(blank) + 1)
    path = tmp_path / "in"
    assert indexed(path, many + b"a\nb\n" + many + b"c\n" + many) == [[b"a", b"b"], [b"c"]]
    chunks = read_index(Place.at(str(path)), 10).chunks
    assert [chunk.offset for chunk in chunks] == [len(many), 2 * len(many) + 4]
    assert chunks[1].length <= index_module.CHUNK_BYTES


def test_too_many_lines(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"a\n" * 11)
    with pytest.raises(InvalidRequest, match="more than 10 lines"):
        read_index(Place.at(str(path)), 10)
    assert read_index(Place.at(str(path)), 11).num_lines == 11
    assert index_module.CHUNK_BYTES < 32 << 20
