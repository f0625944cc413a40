"""How a model's folder says that embeddings are made: in the files of sentence-transformers."""

from pathlib import Path
from typing import Any, Literal

from engine.checkpoint.json_file import read_json
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.pooling import Embedding

MODULES = "modules.json"
_TYPES: dict[str, Literal["last", "mean"]] = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "lasttoken": "last",
    "mean": "mean",
}


def embedding_of(config: EngineConfig) -> Embedding:
    """As configured, else as modules.json says; without that file by the last token, normalized.

    Raises InvalidConfig for one that asks for what is not computed.
    """
    told = _told(Path(config.model))
    if isinstance(told, str) and config.pooling_type == "auto":
        raise InvalidConfig(f"{told}; pooling_type=last or mean would work")
    found = Embedding() if isinstance(told, str) else told
    return Embedding(
        found.type if config.pooling_type == "auto" else config.pooling_type,
        found.is_normalized if config.pooling_normalize is None else config.pooling_normalize,
        found.is_all,
    )


def _told(folder: Path) -> Embedding | str:
    """What the folder says, or what is wrong with it."""
    path = folder / MODULES
    if not path.exists():
        return Embedding()
    modules = read_json(path, list)
    names = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    known = ("Transformer", "Pooling", "Normalize")
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        return f"{path} asks for {unknown}, which is not computed"
    pooling = next((module for module, name in zip(modules, names, strict=True) if name == "Pooling"), None)
    if pooling is None:
        return f"{path} names no Pooling"
    return _pooling(folder / str(pooling.get("path", "")) / "config.json", is_normalized="Normalize" in names)


def _pooling(path: Path, *, is_normalized: bool) -> Embedding | str:
    settings: dict[str, Any] = read_json(path, dict)
    modes = [name for name, value in settings.items() if name.startswith("pooling_mode_") and value is True]
    modes += [settings["pooling_mode"]] if isinstance(settings.get("pooling_mode"), str) else []
    if len(modes) != 1 or modes[0] not in _TYPES:
        return f"{path} asks for {' and '.join(modes) or 'no pooling'}; the last token and the mean are computed"
    return Embedding(_TYPES[modes[0]], is_normalized, is_all=True)
