"""Models that another program has put into a cache of this node."""

from collections.abc import Iterable
from pathlib import Path

from cluster.checkpoint.files import read_header
from cluster.checkpoint.files import weight_files as named_weights
from cluster.download.choice import Share
from cluster.download.node_lock import Tell
from cluster.download.store import Store, Unreachable
from engine.errors import InvalidConfig


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
