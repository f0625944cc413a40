"""The answers so far, kept in files, from which another process can continue."""

import fcntl
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from pyarrow.fs import LocalFileSystem

from cluster.batch.files.lines import is_answered
from cluster.batch.files.place import Place
from engine.errors import InvalidConfig

_NAME = re.compile(r"(?P<first>\d{10})-(?P<num_lines>\d+)\.jsonl")
INPUT = "input"  # the file with the digest of the input that is answered here
LOCK = "lock"  # the file that the process holds which writes here


@dataclass(slots=True)
class Counts:
    """Of lines: answered with status 200, and others."""

    completed: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        return self.completed + self.failed

    def add(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            if is_answered(line):
                self.completed += 1
            else:
                self.failed += 1


class Parts:
    """A folder of files, each with the answers to some lines, in the order of the input without a
    gap. Files appear as a whole; one that was damaged since is as if it were not there. Written by
    one process at a time.
    """

    def __init__(self, folder: Place, digest: str | None) -> None:
        """`digest`: of the input; None: whatever it was. Raises InvalidConfig if the folder has
        answers to another one.
        """
        self._folder = folder
        self._folder.make_folder()
        known = folder / INPUT
        if digest is None:
            pass
        elif not known.is_file:
            known.write(digest.encode())
        elif known.read().decode() != digest:
            raise InvalidConfig(f"{folder} has answers to another input, or to an earlier state of it; delete it")
        self.counts = Counts()
        self._names: list[str] = []
        for name in folder.names():
            found = _NAME.fullmatch(name)
            if found is None or int(found["first"]) != self.counts.total:
                continue
            counts = _counted((folder / name).read().splitlines())
            if counts is not None and counts.total == int(found["num_lines"]):
                self._names.append(name)
                self.counts.completed += counts.completed
                self.counts.failed += counts.failed

    @property
    def num_lines(self) -> int:
        """Answered so far: the first so many."""
        return self.counts.total

    def add(self, lines: list[bytes]) -> None:
        """The answers to the next lines."""
        name = f"{self.num_lines:010}-{len(lines)}.jsonl"
        (self._folder / name).write(b"".join(line + b"\n" for line in lines))
        self._names.append(name)
        self.counts.add(lines)

    def join(self, output: Place) -> None:
        """All answers in one file."""
        with output.writing() as stream:
            for name in self._names:
                stream.write((self._folder / name).read())

    def divide(self, output: Place, errors: Place) -> None:
        """Answers with status 200 in one file, the others in another, which is not written if there
        are none.
        """
        for place, is_wanted in ((output, True), (errors, False)):
            if (self.counts.completed if is_wanted else self.counts.failed) == 0:
                continue
            with place.writing() as stream:
                for name in self._names:
                    lines = (self._folder / name).read().splitlines(keepends=True)
                    stream.write(b"".join(line for line in lines if is_answered(line) == is_wanted))

    def delete(self) -> None:
        self._folder.delete_folder()


def _counted(lines: list[bytes]) -> Counts | None:
    """None if one of them is no answer."""
    counts = Counts()
    try:
        counts.add(lines)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return counts


@contextmanager
def alone(folder: Place) -> Iterator[None]:
    """Holds a folder of parts for one process; raises InvalidConfig if another one holds it. Object
    stores have no locks.
    """
    if not isinstance(folder.filesystem, LocalFileSystem):
        yield
        return
    folder.make_folder()
    with (Path(folder.path) / LOCK).open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidConfig(f"another process writes answers to {folder}") from None
        try:
            yield
        finally:
            if folder.names() == [LOCK]:  # nothing was answered
                folder.delete_folder()
