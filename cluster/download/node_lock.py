"""A lock by which one process of a node fetches a model while the others wait, and say so."""

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

TELL_SECONDS = 10.0
LOOK_SECONDS = 0.2

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
        told = -TELL_SECONDS
        while not _take(file.fileno()):
            if time.monotonic() - told >= TELL_SECONDS:
                told = time.monotonic()
                tell(f"Waiting for {path.read_text() or 'another process of this node'}, which fetches {what}")
            time.sleep(LOOK_SECONDS)
        note(path, f"process {os.getpid()}")
        yield
        note(path, "")


def note(path: Path, text: str) -> None:
    """What waiting processes report."""
    path.write_text(text)


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
