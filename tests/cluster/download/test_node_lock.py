"""The lock by which one process of a node fetches a model."""

import os
import threading
from pathlib import Path

from cluster.download.node_lock import node_lock, note


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
