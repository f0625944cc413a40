"""Finds the store of a model by its name."""

import importlib
from typing import Any

from cluster.download.records import Records
from cluster.download.store import Store, Unreachable
from engine.checkpoint.elsewhere import check_place
from engine.config import HUB_SCHEME
from engine.errors import InvalidConfig


def pin(model: str, name: str, revision: str | None, download_dir: str | None) -> tuple[str, str | None]:
    """A name with its present revision, as NAME@REVISION; and, if the store does not answer and it
    is the one that was fetched last, why. `model`: the name as it was given. Raises InvalidConfig.
    """
    check_place(model, name)
    scheme, _, rest = name.partition("://")
    if name.startswith(HUB_SCHEME):
        commit, why_old = _module("hub").pin(rest, revision, download_dir)
        return f"{name}@{commit}", why_old
    if revision is not None:
        raise InvalidConfig(f"revision={revision} is of a model of the hub; {scheme}:// has no revisions")
    try:
        return f"{name}@{_module('object_store').pin(name)}", None
    except Unreachable as error:
        last = Records(download_dir).last(name)
        if last is None:
            raise
        return f"{name}@{last}", error.reason


def open_store(source: str, download_dir: str | None) -> Store:
    """Raises InvalidConfig."""
    name, _, revision = source.rpartition("@")
    store: Store
    if name.startswith(HUB_SCHEME):
        store = _module("hub").Hub(name.removeprefix(HUB_SCHEME), revision, download_dir)
    else:
        store = _module("object_store").ObjectStore(name, revision, Records(download_dir).files(source))
    return store


def remember(source: str, revision: str | None, download_dir: str | None) -> None:
    """Note, for when the hub or the store cannot be asked, what the name and revision stood for."""
    if source.startswith(HUB_SCHEME):
        repo, _, commit = source.removeprefix(HUB_SCHEME).rpartition("@")
        _module("hub").remember(repo, revision, commit, download_dir)
    else:
        Records(download_dir).note_last(source)


def _module(name: str) -> Any:
    """Imported only where it is used: the clients of hubs and stores take a second."""
    return importlib.import_module(f"cluster.download.{name}")
