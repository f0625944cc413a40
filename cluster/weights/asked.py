"""Weights as another Ray job asks for them, and how they are checked."""

import importlib
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayTaskError

from cluster.weights.folder import read_weights
from cluster.weights.groups.messages import Offer
from cluster.weights.groups.offer import check_offer
from cluster.weights.objects import NodeTensors, ObjectTensors
from engine.config import EngineConfig
from engine.errors import InvalidConfig, in_a_line
from engine.executor import Weights

Tensors = ObjectTensors | NodeTensors


@dataclass(frozen=True, slots=True)
class AskedWeights:
    """A folder, or objects by names of tensors, or what is still to be broadcast. `version`: the
    caller's name.
    """

    version: str
    path: str | None = None
    tensors: Tensors | None = None
    offer: Offer | None = None

    def named(self, version: str) -> "AskedWeights":
        """With that name, unless the caller gave it one."""
        return self if self.version else replace(self, version=version)

    def check_offer(self, config: EngineConfig) -> None:
        """For the model that `config` has. Raises InvalidConfig."""
        if self.offer is not None:
            check_offer(config, self.offer)

    def read(self, config: EngineConfig) -> Weights:
        """For the model that `config` has; all of it is read, which takes as long as it takes.
        Raises InvalidConfig.
        """
        if self.path is not None:
            return read_weights(config, self.path, self.version)
        tensors = self.tensors
        assert tensors is not None, "what was offered has come, and is tensors"
        if config.runs_in_process:  # which has torch
            return Weights(self.version, check_objects(config, tensors), tensors=tensors)
        try:
            digest = ray.get(ray.remote(num_cpus=0)(check_objects).remote(config, tensors))
        except RayTaskError as error:
            wrong = error.cause
            raise InvalidConfig(str(wrong) if isinstance(wrong, InvalidConfig) else in_a_line(wrong)) from None
        return Weights(self.version, digest, tensors=tensors)


@dataclass(frozen=True, slots=True)
class Done:
    """What a replica says of a change. `problem`: one line on why it has not been made here;
    `is_late`: because a later one came first.
    """

    replica: str
    problem: str | None = None
    is_late: bool = False


def check_objects(config: EngineConfig, tensors: Tensors) -> str:
    """Their digest, in a process that may import torch. Raises InvalidConfig."""
    given: Any = importlib.import_module("engine.worker.weights.given")
    digest: str = given.check_tensors(config, tensors)
    return digest
