"""What ends a transfer before all has come."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.download.disk.room import PARTIAL
from cluster.download.outline import _each, _write_header
from cluster.download.store import Interrupted, RemoteFile
from cluster.download.transfer import LONGEST_ASKED_SECONDS, transfer
from engine.errors import InvalidConfig

ENDLESS = 10_000_000  # bytes, which come one by one


class Endless:
    """A store of files that hardly end; before the first byte of "bad", it calls `on_bad`."""

    title = "endless"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._has_begun = threading.Event()

    def files(self) -> tuple[RemoteFile, ...]:
        return tuple(RemoteFile(name, ENDLESS, name, None) for name in ("good", "bad"))

    def pieces(self, file: RemoteFile, start: int, stop: int) -> Iterator[bytes]:
        if file.name == "bad":
            self._has_begun.wait()
            self.on_bad()
        for _ in range(start, stop):
            yield b"x"
            self._has_begun.set()

    def on_bad(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def tells_digest(self, file: RemoteFile) -> bool:
        raise AssertionError

    def place(self, file: RemoteFile) -> Path:
        return self._folder / file.name

    def folder(self, files: tuple[RemoteFile, ...]) -> Path:
        raise AssertionError

    def cached(self) -> Path | None:
        raise AssertionError


class Refusing(Endless):
    def on_bad(self) -> None:
        raise InvalidConfig("bad may not be read")


class Busy(Refusing):
    """Asks for a long pause before it sends the others."""

    def pieces(self, file: RemoteFile, start: int, stop: int) -> Iterator[bytes]:
        if file.name == "bad":
            yield from super().pieces(file, start, stop)
        self._has_begun.set()
        raise Interrupted("too many requests", asked=LONGEST_ASKED_SECONDS)


def test_a_pause_that_a_store_asks_for_ends_with_the_transfer(tmp_path: Path) -> None:
    store = Busy(tmp_path)
    with pytest.raises(InvalidConfig, match="bad may not be read"):
        transfer(store, store.files(), lambda _: None, print)
    (tmp_path / "outline").mkdir()
    with pytest.raises(InvalidConfig, match="bad may not be read"):
        _each(_write_header, Busy(tmp_path), store.files(), tmp_path / "outline", print)


@pytest.mark.parametrize(("kind", "error"), [(Endless, KeyboardInterrupt), (Refusing, InvalidConfig)])
def test_what_has_not_come_is_not_waited_for(tmp_path: Path, kind: type[Endless], error: type[BaseException]) -> None:
    """After Ctrl-C, and if another file cannot be had; what came is kept."""
    store = kind(tmp_path)
    with pytest.raises(error):
        transfer(store, store.files(), lambda _: None, print)
    assert 0 < (tmp_path / f"good{PARTIAL}").stat().st_size < ENDLESS
    assert not (tmp_path / "good").exists()
