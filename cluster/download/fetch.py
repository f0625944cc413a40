"""Fetches a model from its store, all of it or a node's share, under the node's lock."""

from collections.abc import Sequence
from pathlib import Path

from cluster.checkpoint.files import read_header
from cluster.download.choice import Share, small_files, weight_files
from cluster.download.disk.cached import cached
from cluster.download.disk.room import Want, reserved
from cluster.download.node_lock import Tell
from cluster.download.store import Fetched, RemoteFile, Store, Unreachable
from cluster.download.transfer import bytes_left, transfer, want_of
from cluster.memory import human
from cluster.progress import progress
from parallel.spec.stored import INDEX_FILE

_Files = tuple[RemoteFile, ...]


def fetch(store: Store, has_weights: bool, share: Share | None, claims: Path, tell: Tell) -> Fetched:
    """`share`: None: all of it. `claims`: see `reserved`. Raises InvalidConfig."""
    try:
        return _fetch(store, has_weights, share, claims, tell)
    except Unreachable as error:
        return Fetched(cached(store, has_weights, share, error, tell))


def wanted(store: Store, has_weights: bool, share: Share | None, tell: Tell) -> Want | None:
    """Of its weights; None if the store does not answer. Raises InvalidConfig."""
    try:
        _, _, mine = _choose(store, has_weights, share, tell)
    except Unreachable:
        return None
    return want_of(store, mine)


def _choose(store: Store, has_weights: bool, share: Share | None, tell: Tell) -> tuple[_Files, _Files, _Files]:
    """The small files, which are there then; those of weights; and of these, the ones needed."""
    files = store.files()
    small = small_files(files, store.title)
    transfer(store, small, _ignore, tell)
    weights = weight_files(files, _index(store, small), store.title) if has_weights else ()
    needed = {file.name for file in weights}
    if share is not None and len(weights) > 1:
        needed &= share.weight_files(store.folder(small))
    return small, weights, tuple(file for file in weights if file.name in needed)


def _fetch(store: Store, has_weights: bool, share: Share | None, claims: Path, tell: Tell) -> Fetched:
    small, weights, mine = _choose(store, has_weights, share, tell)
    with reserved([want_of(store, mine)], claims):
        _transfer_told(store, mine, len(weights), tell)
    folder = store.folder(small + mine)
    for file in mine:
        read_header(folder / file.name)
    return Fetched(folder, small + mine, tuple(file for file in weights if file not in mine))


def _transfer_told(store: Store, weights: Sequence[RemoteFile], num_all: int, tell: Tell) -> None:
    """With a progress bar, and a line before it. `num_all`: files of weights that the model has."""
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
