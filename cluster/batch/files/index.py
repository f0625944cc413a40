"""The positions of an input's lines, in chunks that are answered one by one."""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from cluster.batch.files.place import Place
from engine.errors import InvalidRequest

CHUNK_LINES = 16
CHUNK_BYTES = 4 << 20  # unless one line has more
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # that programs of Windows put before a text, and no part of it
BLANK = b" \t\r" + BYTE_ORDER_MARK


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some lines; blank ones between them do not count."""

    first: int  # number of its first line, from 0
    num_lines: int
    offset: int  # bytes
    length: int

    def row(self) -> dict[str, int]:
        """For a data set."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Index:
    """Of one input."""

    chunks: tuple[Chunk, ...]
    digest: str  # SHA-256 of the input, in hex

    @property
    def num_lines(self) -> int:
        return self.chunks[-1].first + self.chunks[-1].num_lines if self.chunks else 0

    def after(self, num_lines: int) -> list[Chunk]:
        """The chunks behind the first lines."""
        return [chunk for chunk in self.chunks if chunk.first >= num_lines]


def read_index(source: Place, max_lines: int) -> Index:
    """Reads all of the input once; raises InvalidRequest if it has more lines."""
    digest = hashlib.sha256()
    made: list[Chunk] = []
    first = num_lines = offset = length = 0
    for num_bytes, is_blank in _lines(source, digest):
        if num_lines == CHUNK_LINES or (num_lines and length + num_bytes > CHUNK_BYTES):
            made.append(Chunk(first, num_lines, offset, length))
            first, num_lines, offset, length = first + num_lines, 0, offset + length, 0
        if is_blank and not num_lines:
            offset += num_bytes  # before a chunk, however much it is
            continue
        length += num_bytes
        num_lines += not is_blank
        if first + num_lines > max_lines:
            raise InvalidRequest(f"the file has more than {max_lines} lines", param="input_file_id")
    if num_lines:
        made.append(Chunk(first, num_lines, offset, length))
    return Index(tuple(made), digest.hexdigest())


def _lines(source: Place, digest: Any) -> Iterator[tuple[int, bool]]:
    """Each line's length with its end, in bytes, and whether it is blank. No line is held."""
    num_bytes, is_blank = 0, True
    for data in source.chunks():
        digest.update(data)
        *ended, rest = data.split(b"\n")
        for piece in ended:
            yield num_bytes + len(piece) + 1, is_blank and not piece.strip(BLANK)
            num_bytes, is_blank = 0, True
        num_bytes, is_blank = num_bytes + len(rest), is_blank and not rest.strip(BLANK)
    if num_bytes:
        yield num_bytes, is_blank


def lines_of(data: bytes) -> list[bytes]:
    """The lines of a chunk's bytes, without blank ones."""
    return [line.removeprefix(BYTE_ORDER_MARK) for line in data.split(b"\n") if line.strip(BLANK)]
