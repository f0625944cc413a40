"""Fetches files of a store to this node: several at once, resumed where they broke off, and
verified.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from pathlib import Path

from cluster.download.disk.room import Want, is_whole, partial_of, size_of, told_if_full
from cluster.download.node_lock import Tell, growing, say
from cluster.download.store import Interrupted, RemoteFile, Store
from engine.errors import InvalidConfig

NUM_THREADS = 8
MAX_ATTEMPTS = 6  # consecutive ones that bring nothing
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 30.0
LONGEST_ASKED_SECONDS = 900.0  # hubs count requests by minutes
_READ_BYTES = 1 << 20

Progress = Callable[[int], object]  # called, from several threads, with numbers of bytes


class Patience:
    """Of one file or question; `tell` hears of waits that the store asks for, and `is_over` ends
    them.
    """

    def __init__(self, tell: Tell = say, is_over: threading.Event | None = None) -> None:
        self._tell = tell
        self._is_over = threading.Event() if is_over is None else is_over
        self._attempts = 0

    def check(self) -> None:
        """Raises CancelledError once all is over."""
        if self._is_over.is_set():
            raise CancelledError

    def renew(self) -> None:
        """Something came."""
        self._attempts = 0

    def wait(self, reason: str, asked: float | None = None) -> bool:
        """Whether to try again, once this returns: not after too many attempts, or if it would be
        too long. `asked`: the seconds that the store asks for; None: it does not. Raises
        CancelledError once all is over.
        """
        self._attempts += 1
        if self._attempts >= MAX_ATTEMPTS or (asked or 0) > LONGEST_ASKED_SECONDS:
            return False
        if asked is not None:
            self._tell(f"{reason} It is asked again in {asked:.0f} s, as it says")
        own = min(FIRST_WAIT_SECONDS * 2 ** (self._attempts - 1), LONGEST_WAIT_SECONDS)
        _sleep(max(asked or 0.0, own), self._is_over)
        return True


def _sleep(seconds: float, is_over: threading.Event) -> None:
    if is_over.wait(seconds):
        raise CancelledError


def missing(store: Store, files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """Those that are not in their places, each once."""
    by_place = {store.place(file): file for file in files}
    return [file for place, file in by_place.items() if not is_there(place, file)]


def want_of(store: Store, files: Sequence[RemoteFile]) -> Want:
    return Want(store.title, {store.place(file): file.size for file in files})


def bytes_left(store: Store, files: Sequence[RemoteFile]) -> int:
    """Of those in `missing`, without what an earlier transfer left."""
    return sum(want_of(store, files).left().values())


def transfer(store: Store, files: Sequence[RemoteFile], progress: Progress, tell: Tell) -> None:
    """Bring what is missing to its place. Raises InvalidConfig."""
    absent = missing(store, files)
    if not absent:
        return
    with told_if_full(want_of(store, files), store.place(absent[0]).parent):
        each(absent, lambda file, is_over: _bring(store, file, progress, Patience(tell, is_over), tell), "download")


def each(files: Sequence[RemoteFile], bring: Callable[[RemoteFile, threading.Event], None], name: str) -> None:
    """Bring several at once. The event is set once one has failed, or the process is to end: the
    others are to end then.
    """
    is_over = threading.Event()
    with ThreadPoolExecutor(NUM_THREADS, name) as pool:
        try:
            for call in as_completed([pool.submit(bring, file, is_over) for file in files]):
                call.result()
        except BaseException:
            is_over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _bring(store: Store, file: RemoteFile, progress: Progress, patience: Patience, tell: Tell) -> None:
    """Two models, or revisions, that have the file in common have one place for it."""
    place = store.place(file)
    partial = partial_of(place)
    partial.parent.mkdir(parents=True, exist_ok=True)
    with growing(partial, file.name, tell):
        if is_there(place, file):
            partial.unlink()  # made anew, by waiting for who brought it
            return
        if size_of(partial) > file.size:
            os.truncate(partial, 0)
        _receive(store, file, partial, progress, patience)
        try:
            verify(store, file, partial)
        except InvalidConfig:
            partial.unlink()
            raise
        os.replace(partial, place)


def _receive(store: Store, file: RemoteFile, partial: Path, progress: Progress, patience: Patience) -> None:
    while (start := size_of(partial)) < file.size:
        reason, asked = f"it sent {start} of {file.size} bytes", None
        try:
            with partial.open("ab") as out:
                for piece in store.pieces(file, start, file.size):
                    out.write(piece)
                    progress(len(piece))
                    patience.check()  # what came is kept
        except Interrupted as error:
            reason, asked = str(error), error.asked
        if size_of(partial) > start:
            patience.renew()
        elif not patience.wait(f"{store.title}: {reason}", asked):
            raise InvalidConfig(f"{store.title}: {file.name} cannot be fetched whole: {reason}; start again to go on")


def is_there(path: Path, file: RemoteFile) -> bool:
    return is_whole(path, file.size)


def verify(store: Store, file: RemoteFile, path: Path) -> None:
    """Raises InvalidConfig if what came, in `path`, is not what the store promised."""
    if not _has_digest(path, file) and store.tells_digest(file):
        raise InvalidConfig(f"{store.title}: what came of {file.name} has not the digest {file.digest}; try again")


def _has_digest(path: Path, file: RemoteFile) -> bool:
    kind, _, expected = (file.digest or "").partition(":")
    if not expected:
        return size_of(path) == file.size
    # Not for security: the store chose it, to tell damage.
    digest = hashlib.new("sha1" if kind == "git-sha1" else kind, usedforsecurity=False)
    if kind == "git-sha1":
        digest.update(b"blob %d\0" % size_of(path))
    with path.open("rb") as opened:
        while piece := opened.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest() == expected
