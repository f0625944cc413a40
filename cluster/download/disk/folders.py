"""Models on this node: where they are, and that they are fetched if they are not."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from cluster.download.choice import Share
from cluster.download.disk.room import Want, reserved, told_if_full
from cluster.download.fetch import fetch, wanted
from cluster.download.node_lock import Tell, node_lock
from cluster.download.outline import make_outline
from cluster.download.records import Records
from cluster.download.stores import open_store, remember
from engine.config import EngineConfig
from engine.errors import naming

Part = tuple[EngineConfig, Share | None]  # None: all of the model


def outlined_folder(config: EngineConfig, source: str, tell: Tell) -> Path:
    """Of the model, or of all but its weights' numbers. Raises InvalidConfig."""
    records, has_weights = Records(config.download_dir), config.load_format != "dummy"
    folder = records.folder(source, has_weights) or records.outline(source, has_weights)
    if not folder.exists():
        with told_if_full(Want(source, {}), records.root):
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder = make_outline(open_store(source, config.download_dir), folder, tell, has_weights=has_weights)
    return folder


def fetched_folder(config: EngineConfig, source: str, share: Share | None, tell: Tell) -> Path:
    """Raises InvalidConfig."""
    records = Records(config.download_dir)
    folder = _folder(config, source, records, share)
    if folder is None:
        with told_if_full(Want(source, {}), records.root), node_lock(records.lock(source), source, tell):
            folder = _folder(config, source, records, share) or _fetch(config, source, records, share, tell)
    return folder


@contextlib.contextmanager
def room_for_all(parts: Sequence[Part], tell: Tell) -> Iterator[None]:
    """Room for what is not here of them, as long as the context lasts. Raises InvalidConfig."""
    absent = [(config, share) for config, share in parts if _is_absent(config, share)]
    with contextlib.ExitStack() as held:
        by_claims: dict[Path, list[Want]] = {}
        for config, share in absent if len(absent) > 1 else ():  # one alone is seen to as it is fetched
            store, has_weights = open_store(str(config.source), config.download_dir), config.load_format != "dummy"
            with naming(f"model {config.model_name}"):
                want = wanted(store, has_weights, share, tell)
            if want is not None:
                by_claims.setdefault(Records(config.download_dir).claims, []).append(want)
        for claims, wants in by_claims.items():
            held.enter_context(reserved(wants, claims))
        yield


def _is_absent(config: EngineConfig, share: Share | None) -> bool:
    return config.source is not None and _folder(config, config.source, Records(config.download_dir), share) is None


def _folder(config: EngineConfig, source: str, records: Records, share: Share | None) -> Path | None:
    """Where it is on this node; None if it is not. Raises InvalidConfig."""
    has_weights = config.load_format != "dummy"
    folder = records.folder(source, has_weights)
    if folder is not None or share is None or not has_weights or (some := records.share(source)) is None:
        return folder
    folder, files = some
    return folder if files.keys() >= share.weight_files(folder) else None


def _fetch(config: EngineConfig, source: str, records: Records, share: Share | None, tell: Tell) -> Path:
    """Under the node's lock."""
    store, has_weights = open_store(source, config.download_dir), config.load_format != "dummy"
    found = fetch(store, has_weights, share, records.claims, tell)
    if found.files:
        records.enter(source, has_weights, found.folder, found.files, found.others)
        remember(source, config.revision, config.download_dir)
    return found.folder
