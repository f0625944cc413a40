"""A model by its name, as a folder of this node. The process that is asked first resolves the name
and its revision, once; every other process fetches the same, on its own node.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster.checkpoint.plan import make_plan
from cluster.checkpoint.size import Plan
from cluster.download.choice import Share
from cluster.download.disk.folders import fetched_folder, outlined_folder, room_for_all
from cluster.download.node_lock import Tell, say
from cluster.download.stores import pin
from engine.checkpoint.embedding import embedding_of
from engine.config import HUB_SCHEME, EngineConfig, remote_name
from engine.errors import InvalidConfig, naming


def outlined(config: EngineConfig, tell: Tell = say) -> EngineConfig:
    """`model`, and that of drafts, is a folder that holds everything but perhaps the weights'
    numbers; for plans. Unchanged if it was a folder already. Raises InvalidConfig.
    """
    return _also_draft(_outlined(config, tell), lambda draft: _outlined(draft, tell))


def _outlined(config: EngineConfig, tell: Tell) -> EngineConfig:
    config = _pinned(config, tell)
    if config.source is None:
        return config
    return config.model_copy(update={"model": str(outlined_folder(config, config.source, tell))})


def fetched(config: EngineConfig, tell: Tell = say, share: Share | None = None) -> EngineConfig:
    """`model`, and that of drafts, is a folder that holds the whole model (of dummy weights, all
    but the weights), or with a `share` what the node needs of it. That is fetched unless it is
    here; one process of a node does so, the others wait. Unchanged if it was a folder already.
    Raises InvalidConfig.
    """
    return all_fetched([config], tell, share)[0]


def all_fetched(
    configs: Sequence[EngineConfig], tell: Tell = say, share: Share | None = None
) -> tuple[EngineConfig, ...]:
    """`fetched` of each; none is begun if the disks have too little room for all of them. Raises
    InvalidConfig, which names the model if there are several.
    """
    has_last = share is None or share.has_last
    configs = _of_each(configs, lambda config: pinned(config, tell) if has_last else _pinned(config, tell))
    parts = [(config, share) for config in configs]
    parts += [(config.draft, None) for config in configs if has_last and config.draft is not None]
    with room_for_all(parts, tell):
        found = _of_each(configs, lambda config: _fetched(config, tell, share))
        if not has_last:
            return found
        return _of_each(found, lambda config: _also_draft(config, lambda draft: _fetched(draft, tell, None)))


def _of_each(configs: Sequence[EngineConfig], do: Callable[[EngineConfig], EngineConfig]) -> tuple[EngineConfig, ...]:
    made = []
    for config in configs:
        with naming(f"model {config.model_name}", among=len(configs)):
            made.append(do(config))
    return tuple(made)


def _fetched(config: EngineConfig, tell: Tell, share: Share | None) -> EngineConfig:
    config = _pinned(config, tell)
    if config.source is None:
        return config
    return config.model_copy(update={"model": str(fetched_folder(config, config.source, share, tell))})


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
    with _by_name(config):
        return config, make_plan(config)


@contextmanager
def _by_name(config: EngineConfig) -> Iterator[None]:
    """Have errors show names of models in place of folders that nobody has given."""
    try:
        yield
    except InvalidConfig as error:
        message = str(error)
        for each in (config, config.draft):
            if each is not None and each.source is not None:
                message = message.replace(each.model, each.source.rpartition("@")[0].removeprefix(HUB_SCHEME))
        raise InvalidConfig(message) from None


def all_planned(configs: Sequence[EngineConfig]) -> list[tuple[EngineConfig, Plan]]:
    """`planned` of each, which also says how embeddings are made. Raises InvalidConfig, which names
    the model if there are several.
    """
    found = []
    for config in configs:
        with naming(f"model {config.model_name}", among=len(configs)):
            found.append(planned(config))
            with _by_name(found[-1][0]):
                embedding_of(found[-1][0])
    return found


def folder_of(model: str) -> Path:
    """Of the whole model, on this node. Raises InvalidConfig."""
    return Path(fetched(EngineConfig.create(model=model)).model)
