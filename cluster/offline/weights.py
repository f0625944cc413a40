"""Weights that a caller of `LLM` gives in place of its model's: a folder, or tensors by name."""

import importlib
import os
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from cluster.weights.folder import read_weights
from cluster.weights.objects import put_tensors
from engine.config import EngineConfig
from engine.executor import Weights
from engine.frontend.async_engine import AsyncEngine

GivenWeights = str | os.PathLike[str] | Mapping[str, Any]


def checked_weights(config: EngineConfig, given: GivenWeights, version: str) -> Weights:
    """Raises InvalidConfig naming what is wrong. Tensors are copied: a process that takes a lost
    one's place reads them again.
    """
    if isinstance(given, (str, os.PathLike)):
        return read_weights(config, str(Path(given).absolute()), version)
    module: Any = importlib.import_module("engine.worker.weights.given")  # not imported above: it needs torch
    digest: str = module.check_tensors(config, given)
    copies: dict[str, Any] = module.copied(given)
    kept = copies if config.runs_in_process else put_tensors(copies)
    return Weights(version, digest, tensors=kept)


class OfflineWeights:
    """What an engine of this process' own computes with."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._num_updates = 0
        self._versions: set[str] = set()  # those that there were

    @property
    def version(self) -> str | None:
        """None: the model's own."""
        weights = self._engine.observer.weights
        return None if weights is None else weights.version

    def update(self, given: GivenWeights, version: str | None) -> str:
        """See `LLM.update_weights`."""
        new = checked_weights(self._engine.config, given, version or self._next_version())
        self._engine.controls.update_weights(new, "keep").result()
        self._num_updates += 1
        self._versions.add(new.version)
        return new.version

    def _next_version(self) -> str:
        """Its number, or the first one behind it that no caller has given as a name."""
        return next(name for name in map(str, count(self._num_updates + 1)) if name not in self._versions)
