"""The lock by which one process of a node fetches a model."""

import os
import threading
from pathlib import Path

from cluster.download.node_lock import growing, node_lock, note


def test_the_others_wait_and_say_for_whom(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    told: list[str] = []
    waits, came = threading.Event(), threading.Event()

    def tell(line: str) -> None:
        told.append(line)
        waits.set()

    def wait() -> None:
        with node_lock(path, "a model", tell):
            came.set()

    other = threading.Thread(target=wait)
    with node_lock(path, "a model", told.append):
        other.start()
        assert waits.wait(20)
        assert not came.is_set()
    other.join(20)
    assert came.is_set()
    assert told == [f"Waiting for process {os.getpid()}, which fetches a model"]


def test_it_is_free_again_after_an_error(tmp_path: Path) -> None:
    told: list[str] = []
    try:
        with node_lock(tmp_path / "lock", "a model", told.append):
            raise OSError
    except OSError:
        note(tmp_path / "lock", "what a lost process has left")
    with node_lock(tmp_path / "lock", "a model", told.append):
        assert told == []


def test_a_file_that_grows_is_one_holders_alone(tmp_path: Path) -> None:
    """Who waits gets the file that has the name then, not the one that had it."""
    part, whole = tmp_path / "part", tmp_path / "whole"
    waits = threading.Event()
    seen: list[int] = []

    def wait() -> None:
        with growing(part, "a file", lambda line: waits.set()):
            seen.append(part.stat().st_size)

    other = threading.Thread(target=wait)
    with growing(part, "a file", lambda line: None):
        part.write_bytes(b"some")
        other.start()
        assert waits.wait(20)
        part.replace(whole)
    other.join(20)
    assert (seen, whole.read_bytes()) == ([0], b"some")
