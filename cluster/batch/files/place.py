"""Files on this machine or in an object store, by pyarrow's file systems."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow
from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from engine.errors import InvalidConfig, in_a_line, without_secret

WRITING = ".writing"  # suffix of a file that is not whole yet
BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """A file or a folder. Methods raise OSError."""

    filesystem: Any  # a pyarrow.fs.FileSystem
    path: str

    @classmethod
    def at(cls, name: str) -> Self:
        """By a path, or by a URI such as s3://bucket/folder; raises InvalidConfig."""
        if "://" not in name:
            return cls(LocalFileSystem(), str(Path(name).absolute()))
        try:
            return cls(*FileSystem.from_uri(name))
        except (pyarrow.ArrowException, ValueError, OSError) as error:
            raise InvalidConfig(without_secret(f"{name!r} is not a place for files: {in_a_line(error)}")) from None

    def __truediv__(self, name: str) -> "Place":
        return Place(self.filesystem, f"{self.path.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.path

    @property
    def is_file(self) -> bool:
        return bool(self.filesystem.get_file_info(self.path).type == FileType.File)

    @property
    def is_folder(self) -> bool:
        return bool(self.filesystem.get_file_info(self.path).type == FileType.Directory)

    @property
    def num_bytes(self) -> int:
        return int(self.filesystem.get_file_info(self.path).size or 0)

    @property
    def written_at(self) -> int | None:
        """Unix time; None if there is no such file."""
        found = self.filesystem.get_file_info(self.path)
        return found.mtime_ns // 10**9 if found.type == FileType.File else None

    def names(self) -> list[str]:
        """Of the whole files in a folder, sorted; none if there is no folder."""
        found = self.filesystem.get_file_info(FileSelector(self.path, allow_not_found=True))
        return sorted(
            each.base_name for each in found if each.type == FileType.File and not each.base_name.endswith(WRITING)
        )

    def folders(self) -> list[str]:
        """Names of the folders in a folder, sorted."""
        found = self.filesystem.get_file_info(FileSelector(self.path, allow_not_found=True))
        return sorted(each.base_name for each in found if each.type == FileType.Directory)

    def read(self) -> bytes:
        with self.filesystem.open_input_stream(self.path) as stream:
            return bytes(stream.read())

    def part(self, offset: int, length: int) -> bytes:
        with self.filesystem.open_input_file(self.path) as file:
            return bytes(file.read_at(length, offset))

    def chunks(self) -> Iterator[bytes]:
        """The file's bytes, up to BUFFER_BYTES at a time."""
        with self.filesystem.open_input_stream(self.path) as stream:
            while data := bytes(stream.read(BUFFER_BYTES)):
                yield data

    def make_folder(self) -> None:
        self.filesystem.create_dir(self.path, recursive=True)

    def write(self, data: bytes) -> None:
        with self.writing() as stream:
            stream.write(data)

    @contextmanager
    def writing(self) -> Iterator[Any]:
        """A stream; the file is there, as a whole, once the context has ended without an error. A
        power loss leaves no part of it, nor does an error: a full disk would stay full.
        """
        if not isinstance(self.filesystem, LocalFileSystem):
            with self.filesystem.open_output_stream(self.path) as stream:
                try:
                    yield stream
                except BaseException:
                    stream.close()  # completes the object
                    self.delete()
                    raise
            return
        unfinished = self.path + WRITING
        try:
            with self.filesystem.open_output_stream(unfinished) as stream:
                yield stream
            _to_disk(unfinished)
            self.filesystem.move(unfinished, self.path)
        except BaseException:
            with suppress(FileNotFoundError):
                self.filesystem.delete_file(unfinished)
            raise

    def delete(self) -> None:
        self.filesystem.delete_file(self.path)

    def delete_folder(self) -> None:
        self.filesystem.delete_dir(self.path)


def _to_disk(path: str) -> None:
    """What was written to a file: a new name may get there before it."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
