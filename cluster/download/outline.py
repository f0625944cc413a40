"""A model without its numbers: small files, and weight files of the right size that hold only their
headers. Plans need no more, so an impossible configuration is refused before weights are fetched.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from cluster.checkpoint.files import LENGTH_BYTES, MAX_HEADER_BYTES
from cluster.download.choice import small_files, weight_files
from cluster.download.disk.cached import cached
from cluster.download.store import Interrupted, RemoteFile, Store, Unreachable
from cluster.download.transfer import Patience, each, verify
from engine.errors import InvalidConfig
from parallel.spec.stored import INDEX_FILE

FIRST_BYTES = 1 << 18  # most headers are shorter

_Tell = Callable[[str], object]
Write = Callable[[Store, RemoteFile, Path, Patience], None]


def make_outline(store: Store, folder: Path, tell: _Tell, *, has_weights: bool) -> Path:
    """In a new folder, which is returned; or that of the model itself, if the store does not answer
    and all of it is here. Raises InvalidConfig.
    """
    try:
        files = store.files()
    except Unreachable as error:
        return cached(store, has_weights, None, error, tell)
    making = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(making, ignore_errors=True)
    try:
        _each(_write_whole, store, small_files(files, store.title), making, tell)
        if has_weights:
            index = making / INDEX_FILE
            weights = weight_files(files, index.read_bytes() if index.exists() else None, store.title)
            _each(_write_header, store, weights, making, tell)
        if not folder.exists():
            os.replace(making, folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return folder


def _each(write: Write, store: Store, files: tuple[RemoteFile, ...], folder: Path, tell: _Tell) -> None:
    for file in files:
        (folder / file.name).parent.mkdir(parents=True, exist_ok=True)
    each(files, lambda file, is_over: write(store, file, folder / file.name, Patience(tell, is_over)), "outline")


def _write_whole(store: Store, file: RemoteFile, path: Path, patience: Patience) -> None:
    path.write_bytes(_read(store, file, 0, file.size, patience))
    verify(store, file, path)


def _write_header(store: Store, file: RemoteFile, path: Path, patience: Patience) -> None:
    """What is behind the header is a hole, which takes no room."""
    start = _read(store, file, 0, min(FIRST_BYTES, file.size), patience)
    length = LENGTH_BYTES + int.from_bytes(start[:LENGTH_BYTES], "little")
    stop = min(length, file.size, LENGTH_BYTES + MAX_HEADER_BYTES)  # plans refuse what is longer
    if stop > len(start):
        start += _read(store, file, len(start), stop, patience)
    with path.open("wb") as out:
        out.write(start[:stop])
        out.truncate(file.size)


def _read(store: Store, file: RemoteFile, start: int, stop: int, patience: Patience) -> bytes:
    """The bytes from `start` to `stop`; raises InvalidConfig if they do not come."""
    data = b""
    while len(data) < stop - start:
        before, reason, asked = len(data), "", None
        try:
            for piece in store.pieces(file, start + len(data), stop):
                data += piece
        except Interrupted as error:
            reason, asked = f": {error}", error.asked
        if len(data) > before:
            patience.renew()
        elif not patience.wait(f"{store.title}{reason}", asked):
            raise InvalidConfig(f"{store.title}: {file.name} has {len(data)} of {stop - start} bytes{reason}")
    return data
