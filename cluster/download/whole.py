"""Fetches a whole model from its store, under the node's lock."""

from collections.abc import Sequence
from pathlib import Path

from cluster.checkpoint.files import read_header
from cluster.checkpoint.files import weight_files as named_weights
from cluster.download.choice import small_files, weight_files
from cluster.download.node_lock import Tell
from cluster.download.store import RemoteFile, Store, Unreachable
from cluster.download.transfer import bytes_left, check_room, transfer
from cluster.memory import human
from cluster.progress import progress
from engine.errors import InvalidConfig
from parallel.spec.stored import INDEX_FILE


def fetch(store: Store, has_weights: bool, tell: Tell) -> tuple[Path, tuple[RemoteFile, ...]]:
    """The folder, and what is in it. Raises InvalidConfig (Unreachable: if the store cannot even be
    asked what there is).
    """
    files = store.files()
    small = small_files(files, store.title)
    transfer(store, small, _ignore)
    weights = weight_files(files, _index(store, small), store.title) if has_weights else ()
    _transfer_told(store, weights, tell)
    folder = store.folder(small + weights)
    for file in weights:
        read_header(folder / file.name)
    return folder, small + weights


def cached(store: Store, has_weights: bool, error: Unreachable, tell: Tell) -> Path:
    """What another program has put into the cache; raises `error` if that is not whole."""
    folder = store.cached()
    try:
        if folder is None or not (folder / "config.json").exists():
            raise error
        for path in named_weights(folder) if has_weights else ():
            read_header(path)
    except InvalidConfig:
        raise error from None
    tell(f"{error.reason}; the files in {folder} are whole by their headers, and are not verified otherwise")
    return folder


def _transfer_told(store: Store, weights: Sequence[RemoteFile], tell: Tell) -> None:
    """With a progress bar, and a line before it."""
    check_room(store, weights)
    total, left = sum(file.size for file in weights), bytes_left(store, weights)
    if left:
        tell(f"Fetching {store.title}: {human(left)} of {human(total)}, to {store.place(weights[0]).parent}")
        with progress(total=total, initial=total - left, unit="B", unit_scale=True, desc=store.title) as bar:
            transfer(store, weights, bar.update)


def _index(store: Store, small: Sequence[RemoteFile]) -> bytes | None:
    return next((store.place(file).read_bytes() for file in small if file.name == INDEX_FILE), None)


def _ignore(num_bytes: int) -> None:
    return
