"""Weights that take the place of a model's while it is served: a folder, checked before any rank
reads it.
"""

import dataclasses
from pathlib import Path

from cluster.checkpoint.manifest import check_weights, whole_digest
from cluster.checkpoint.spec import read_spec
from cluster.checkpoint.values import check_values
from engine.checkpoint.model_config import ModelConfig
from engine.checkpoint.sample import weights_digest
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.executor import Weights
from parallel.spec.decoder import DecoderConfig


def read_weights(config: EngineConfig, folder: str, version: str) -> Weights:
    """A checkpoint of the model that `config` has, by any other numbers; all of it is read. Raises
    InvalidConfig.
    """
    if not Path(folder).is_absolute():
        raise InvalidConfig(f"path={folder!r} is not an absolute path")
    if not Path(folder).is_dir():
        raise InvalidConfig(f"path={folder!r} is no folder here")
    own = read_spec(ModelConfig.load(config.model), config.model)
    spec = read_spec(ModelConfig.load(folder), folder)
    if (wrong := _difference(own, spec)) is not None:
        raise InvalidConfig(f"{folder} holds another model than the one that is served: {wrong}")
    check_weights(folder, spec)
    check_values(config.model_copy(update={"model": folder, "load_format": "auto", "source": None}))
    sample = weights_digest(folder)
    return Weights(version, whole_digest(Path(folder), sample), folder=folder, sample=sample)


def _difference(own: DecoderConfig, other: DecoderConfig) -> str | None:
    """The first field that differs, with both values."""
    for field in dataclasses.fields(own):
        mine, its = getattr(own, field.name), getattr(other, field.name)
        if mine != its:
            return f"its {field.name} is {its}, not {mine}"
    return None
