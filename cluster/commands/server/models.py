"""The models that a server is to serve: the one that its options describe, or those below `models`
in its configuration file.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from pydantic import ValidationError

from cluster.api.models.aliases import Target
from cluster.checkpoint.size import Plan
from cluster.launch.config.model_config import ModelConfig, checked_aliases
from cluster.launch.machine import check_machine
from cluster.launch.room import divide
from engine.checkpoint.model_folder import resolve_paths
from engine.config import EngineConfig, explain
from engine.errors import InvalidConfig, naming
from engine.offload.block_files import Folder


class ModelStart(NamedTuple):
    """One of them."""

    own: ModelConfig
    config: EngineConfig  # of `own.engine`

    @property
    def num_ranks(self) -> int:
        """Of all its engines, the most there may be."""
        return self.own.most_engines * self.config.world_size

    def with_config(self, config: EngineConfig) -> Self:
        return self._replace(config=config)

    def args(self) -> dict[str, Any]:
        """Of `build_app`, for this model."""
        return self.own.model_dump(exclude_unset=True) | {"engine": self.config.model_dump()}


def only_model(engine: Mapping[str, Any], of_server: Iterable[str], **own: Any) -> ModelStart:
    """`of_server`: names of the server's options, which may be meant. Raises InvalidConfig."""
    return ModelStart(ModelConfig(engine=dict(engine), **own), EngineConfig.create(of_server, **engine))


def several_models(
    given: Sequence[Mapping[str, Any]], defaults: Mapping[str, Any], of_server: Iterable[str]
) -> tuple[ModelStart, ...]:
    """`defaults`: options of the engine, for every model that does not have its own; `of_server`:
    see `only_model`. Raises InvalidConfig.
    """
    if "model" in defaults:
        raise InvalidConfig(
            f"model={defaults['model']} is the only one, and models lists others: leave out one of them"
        )
    EngineConfig.create(of_server, model="of each", **defaults)
    return tuple(_one(index, each, defaults) for index, each in enumerate(given))


def check_names(models: Sequence[ModelStart], aliases: Mapping[str, Target]) -> None:
    """Also reads their adapters. Raises InvalidConfig."""
    options = []
    for model in models:
        with naming(f"model {model.config.model_name}", among=len(models)):
            options.append(model.own.options(model.config))
    checked_aliases(dict(aliases), options)


def check_folders(models: Sequence[ModelStart]) -> None:
    """Raises InvalidConfig for a folder of cached blocks that this machine cannot use."""
    for model in models:
        if (path := model.config.kv_offloading_path) is not None:
            with naming(f"model {model.config.model_name}", among=len(models)):
                Folder(path)


def check_machines(models: Sequence[ModelStart], plans: Sequence[Plan]) -> bool:
    """Whether this machine's CPUs compute all models. Raises InvalidConfig if it has not what they
    need, each beside those before it.
    """
    taken, on_cpu = 0, 0
    for model, plan in zip(models, plans, strict=True):
        with naming(f"model {model.config.model_name}", among=len(models)):
            need = check_machine(model.config, plan, model.own.most_engines, taken=taken)
        if need is not None:
            taken, on_cpu = taken + need.needed, on_cpu + 1
    return on_cpu == len(models)


def leave_room(models: Sequence[ModelStart], plans: Sequence[Plan], num_gateways: int) -> list[ModelStart]:
    """With numbers of threads that leave cores for HTTP and for each other; prints a line about
    each.
    """
    roomy = []
    for model, plan in zip(models, plans, strict=True):
        others = sum(other.num_ranks for other in models) - model.num_ranks
        weight_bytes = model.config.world_size * plan.weight_bytes
        numbers = {"num_engines": model.own.most_engines, "num_gateways": num_gateways, "other_ranks": others}
        room = divide(model.config, weight_bytes, **numbers)
        print(f"{model.config.model_name}: {room}" if others else room, flush=True)
        roomy.append(model.with_config(model.config.model_copy(update={"num_threads": room.num_threads})))
    return roomy


def _one(index: int, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> ModelStart:
    try:
        own = ModelConfig(**given)
        own.replicas()
        return ModelStart(own, EngineConfig.create(**resolve_paths({**defaults, **own.engine})))
    except ValidationError as error:
        raise InvalidConfig(f"models[{index}]: {explain(error, list(ModelConfig.model_fields))}") from None
    except InvalidConfig as error:
        raise InvalidConfig(f"models[{index}]: {error}") from None
