"""The configuration of a model among those of an application."""

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from cluster.api.models.aliases import Alias, read_aliases
from cluster.checkpoint.loadable import read_lora
from cluster.gateway.options import ModelOptions
from cluster.launch.packages import ROOT
from engine.config import EngineConfig
from engine.errors import InvalidConfig

_NO_WORD = re.compile(r"[^A-Za-z0-9._]+")
Target = str | dict[str, float]  # of an alias: a model, or several with their weights


class ModelConfig(BaseModel):
    """One of the `models` of an `AppConfig`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: dict[str, Any]  # of an EngineConfig; a relative `model` is looked for in the repository's folder
    num_engines: int = Field(1, ge=1)
    lora_modules: tuple[str, ...] = ()  # NAME=FOLDER of adapters that requests may name as their model
    lora_roots: tuple[str, ...] = ()  # folders below which adapters may be loaded while the server runs

    def engine_config(self) -> EngineConfig:
        """Raises InvalidConfig."""
        engine = dict(self.engine)
        if isinstance(engine.get("model"), str):
            path = ROOT / engine["model"]
            engine["model"] = str(path) if path.parent.exists() else engine["model"]
        return EngineConfig.create(**engine)

    def options(self, engine: EngineConfig) -> ModelOptions:
        """For gateways. Raises InvalidConfig; see `read_lora`."""
        return ModelOptions(engine.model_name, read_lora(self.lora_modules, self.lora_roots, engine))


def checked_aliases(given: dict[str, Target], models: Sequence[ModelOptions]) -> dict[str, Alias]:
    """Raises InvalidConfig for these, and for a name that two models have or their adapters."""
    own = [model.name for model in models]
    names = own + [adapter.name for model in models for adapter in model.lora.given]
    for name in names:
        if names.count(name) > 1:
            raise InvalidConfig(f"models: two have the name {name!r}; served_model_name gives another")
    aliases = read_aliases(given, own)
    for name in aliases:
        if name in names:
            raise InvalidConfig(f"aliases: {name!r} is an adapter's name")
    return aliases


def deployment_names(kind: str, models: Sequence[str]) -> list[str]:
    """Of a deployment for each model: with its name, if there are several. Raises InvalidConfig."""
    if len(models) == 1:
        return [kind]
    names = [f"{kind}-{_NO_WORD.sub('-', model)}" for model in models]
    for name, model in zip(names, models, strict=True):
        if names.count(name) > 1:
            raise InvalidConfig(f"models: {model!r} and another differ in signs only; served_model_name gives another")
    return names
