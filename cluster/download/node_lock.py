"""Locks by which one process of a node fetches a model, or a file that models share, while the
others wait, and say so.
"""

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

TELL_SECONDS = 10.0
LOOK_SECONDS = 0.2
ANOTHER = "another process of this node"

Tell = Callable[[str], object]


def say(line: str) -> None:
    """To stderr: what a command prints is its result."""
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def node_lock(path: Path, what: str, tell: Tell) -> Iterator[None]:
    """Held for as long as the context lasts, or the process lives. A process that has to wait
    reports which one holds it, at once and every TELL_SECONDS.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        _wait(file.fileno(), lambda: path.read_text() or ANOTHER, what, tell)
        note(path, f"process {os.getpid()}")
        yield
        note(path, "")


def note(path: Path, text: str) -> None:
    """What waiting processes report."""
    path.write_text(text)


@contextlib.contextmanager
def growing(path: Path, what: str, tell: Tell) -> Iterator[None]:
    """A file that whoever holds it appends to, while others wait, as in `node_lock`: made unless it
    is there, and again if it was moved away or removed meanwhile.
    """
    while True:
        with path.open("ab") as file:
            _wait(file.fileno(), lambda: ANOTHER, what, tell)
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield
                return


def _wait(descriptor: int, holder: Callable[[], str], what: str, tell: Tell) -> None:
    told = -TELL_SECONDS
    while not _take(descriptor):
        if time.monotonic() - told >= TELL_SECONDS:
            told = time.monotonic()
            tell(f"Waiting for {holder()}, which fetches {what}")
        time.sleep(LOOK_SECONDS)


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
