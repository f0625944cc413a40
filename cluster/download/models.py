"""A model by its name, as a folder of this node. The process that is asked first resolves the name
and its revision, once; every other process fetches the same, on its own node.
"""

from collections.abc import Callable
from pathlib import Path

from cluster.checkpoint.plan import make_plan
from cluster.checkpoint.size import Plan
from cluster.download.choice import Share
from cluster.download.fetch import fetch
from cluster.download.node_lock import Tell, node_lock, say
from cluster.download.outline import make_outline
from cluster.download.records import Records
from cluster.download.stores import open_store, pin, remember
from engine.config import EngineConfig, remote_name
from engine.errors import InvalidConfig


def outlined(config: EngineConfig, tell: Tell = say) -> EngineConfig:
    """`model`, and that of drafts, is a folder that holds everything but perhaps the weights'
    numbers; for plans. Unchanged if it was a folder already. Raises InvalidConfig.
    """
    return _also_draft(_outlined(config, tell), lambda draft: _outlined(draft, tell))


def _outlined(config: EngineConfig, tell: Tell) -> EngineConfig:
    config = _pinned(config, tell)
    if config.source is None:
        return config
    records, has_weights = Records(config.download_dir), config.load_format != "dummy"
    folder = records.folder(config.source, has_weights) or records.outline(config.source, has_weights)
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        store = open_store(config.source, config.download_dir)
        folder = make_outline(store, folder, tell, has_weights=has_weights)
    return config.model_copy(update={"model": str(folder)})


def fetched(config: EngineConfig, tell: Tell = say, share: Share | None = None) -> EngineConfig:
    """`model`, and that of drafts, is a folder that holds the whole model (of dummy weights, all
    but the weights), or with a `share` what the node needs of it. That is fetched unless it is
    here; one process of a node does so, the others wait. Unchanged if it was a folder already.
    Raises InvalidConfig.
    """
    found = _fetched(config, tell, share)
    if share is not None and not share.has_last:
        return found
    return _also_draft(found, lambda draft: _fetched(draft, tell, None))


def _fetched(config: EngineConfig, tell: Tell, share: Share | None) -> EngineConfig:
    config = _pinned(config, tell)
    if config.source is None:
        return config
    records = Records(config.download_dir)
    folder = _folder(config, config.source, records, share)
    if folder is None:
        with node_lock(records.lock(config.source), config.source, tell):
            folder = _folder(config, config.source, records, share)
            if folder is None:
                folder = _fetch(config, config.source, records, share, tell)
    return config.model_copy(update={"model": str(folder)})


def _folder(config: EngineConfig, source: str, records: Records, share: Share | None) -> Path | None:
    """Where it is on this node; None if it is not. Raises InvalidConfig."""
    has_weights = config.load_format != "dummy"
    folder = records.folder(source, has_weights)
    if folder is not None or share is None or not has_weights or (some := records.share(source)) is None:
        return folder
    folder, files = some
    return folder if files.keys() >= share.weight_files(folder) else None


def pinned(config: EngineConfig, tell: Tell = say) -> EngineConfig:
    """`source`, and that of drafts, says what every node has to fetch, revision and all. Unchanged
    if that is done, or if `model` is a folder. Raises InvalidConfig.
    """
    return _also_draft(_pinned(config, tell), lambda draft: _pinned(draft, tell))


def _also_draft(config: EngineConfig, do: Callable[[EngineConfig], EngineConfig]) -> EngineConfig:
    return config if config.draft is None else config.with_draft(do(config.draft))


def _pinned(config: EngineConfig, tell: Tell) -> EngineConfig:
    name = remote_name(config.model)
    if name is None and config.revision is not None and config.source is None:
        raise InvalidConfig(f"revision={config.revision} is of a model of the hub, and {config.model} is a folder")
    if name is None or config.source is not None:
        return config
    source, why_old = pin(config.model, name, config.revision, config.download_dir)
    if why_old is not None:
        tell(f"{why_old}. What the cache has is taken: {source}")
    return config.model_copy(update={"source": source, "served_model_name": config.model_name})


def planned(config: EngineConfig) -> tuple[EngineConfig, Plan]:
    """`outlined`, with its plan. Raises InvalidConfig."""
    config = outlined(config)
    return config, make_plan(config)


def folder_of(model: str) -> Path:
    """Of the whole model, on this node. Raises InvalidConfig."""
    return Path(fetched(EngineConfig.create(model=model)).model)


def _fetch(config: EngineConfig, source: str, records: Records, share: Share | None, tell: Tell) -> Path:
    """Under the node's lock."""
    store, has_weights = open_store(source, config.download_dir), config.load_format != "dummy"
    found = fetch(store, has_weights, share, tell)
    if found.files:
        records.enter(source, has_weights, found.folder, found.files, found.others)
        remember(source, config.revision, config.download_dir)
    return found.folder
