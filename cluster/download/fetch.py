"""Fetches a model from its store, all of it or a node's share, under the node's lock."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from cluster.checkpoint.files import read_header
from cluster.checkpoint.files import weight_files as named_weights
from cluster.download.choice import Share, small_files, weight_files
from cluster.download.node_lock import Tell
from cluster.download.store import Fetched, RemoteFile, Store, Unreachable
from cluster.download.transfer import bytes_left, check_room, transfer
from cluster.memory import human
from cluster.progress import progress
from engine.errors import InvalidConfig
from parallel.spec.stored import INDEX_FILE


def fetch(store: Store, has_weights: bool, share: Share | None, tell: Tell) -> Fetched:
    """`share`: None: all of it. Raises InvalidConfig."""
    try:
        return _fetch(store, has_weights, share, tell)
    except Unreachable as error:
        return Fetched(cached(store, has_weights, share, error, tell))


def _fetch(store: Store, has_weights: bool, share: Share | None, tell: Tell) -> Fetched:
    files = store.files()
    small = small_files(files, store.title)
    transfer(store, small, _ignore, tell)
    weights = weight_files(files, _index(store, small), store.title) if has_weights else ()
    needed = {file.name for file in weights}
    if share is not None and len(weights) > 1:
        needed &= share.weight_files(store.folder(small))
    mine = tuple(file for file in weights if file.name in needed)
    _transfer_told(store, mine, len(weights), tell)
    folder = store.folder(small + mine)
    for file in mine:
        read_header(folder / file.name)
    return Fetched(folder, small + mine, tuple(file for file in weights if file.name not in needed))


def cached(store: Store, has_weights: bool, share: Share | None, error: Unreachable, tell: Tell) -> Path:
    """What another program has put into the cache; raises `error` if that has not all that is
    needed.
    """
    folder = store.cached()
    try:
        if folder is None or not (folder / "config.json").exists():
            raise error
        for path in _weights_in(folder, share) if has_weights else ():
            read_header(path)
    except (InvalidConfig, FileNotFoundError):
        raise error from None
    tell(f"{error.reason}; the files in {folder} are whole by their headers, and are not verified otherwise")
    return folder


def _weights_in(folder: Path, share: Share | None) -> Iterable[Path]:
    """Raises InvalidConfig."""
    return named_weights(folder) if share is None else [folder / name for name in share.weight_files(folder)]


def _transfer_told(store: Store, weights: Sequence[RemoteFile], num_all: int, tell: Tell) -> None:
    """With a progress bar, and a line before it. `num_all`: files of weights that the model has."""
    check_room(store, weights)
    total, left = sum(file.size for file in weights), bytes_left(store, weights)
    if left:
        part = f" of {len(weights)} of its {num_all} files" if len(weights) < num_all else ""
        tell(f"Fetching {store.title}: {human(left)} of {human(total)}{part}, to {store.place(weights[0]).parent}")
        with progress(total=total, initial=total - left, unit="B", unit_scale=True, desc=store.title) as bar:
            transfer(store, weights, bar.update, tell)


def _index(store: Store, small: Sequence[RemoteFile]) -> bytes | None:
    return next((store.place(file).read_bytes() for file in small if file.name == INDEX_FILE), None)


def _ignore(num_bytes: int) -> None:
    return
