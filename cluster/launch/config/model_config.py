"""The configuration of a model among those of an application."""

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from cluster.api.models.aliases import Alias, Target, read_aliases
from cluster.checkpoint.loadable import read_lora
from cluster.gateway.options import ModelOptions
from cluster.launch.config.load_policy import LoadPolicy
from cluster.launch.packages import ROOT
from engine.config import LEAST_GIB, MOST_HOST_GIB, MOST_PROMPT, EngineConfig, Transport
from engine.errors import InvalidConfig

Aliases = dict[str, Target]  # other names of models, as a file has them
WINDOW_SECONDS = 15.0  # over which engines' reports are averaged; Serve sends one every ten


class Autoscaling(BaseModel):
    """In place of a model's `num_engines`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    min_engines: int = Field(1, ge=0)  # 0: none while there are no requests; the next one waits for its engine
    max_engines: int = Field(ge=1)
    target_load: float = Field(0.7, gt=0, le=1)  # share of its room that an engine is to use
    standby_engines: int = Field(0, ge=0)  # more than the load needs, for what comes suddenly
    upscale_delay: float = Field(10, ge=0)  # seconds for which more must be wanted before they are started
    downscale_delay: float = Field(300, ge=0)  # and fewer, before some are ended

    @model_validator(mode="after")
    def _is_a_range(self) -> "Autoscaling":
        if self.min_engines > self.max_engines:
            raise ValueError(f"min_engines={self.min_engines} is above max_engines={self.max_engines}")
        return self

    def for_serve(self) -> AutoscalingConfig:
        """Serve's own name for it."""
        return AutoscalingConfig(
            min_replicas=self.min_engines,
            initial_replicas=max(1, self.min_engines),
            max_replicas=self.max_engines,
            upscale_delay_s=self.upscale_delay,
            downscale_delay_s=self.downscale_delay,
            look_back_period_s=WINDOW_SECONDS,
            policy=AutoscalingPolicy(
                policy_function=f"{LoadPolicy.__module__}:{LoadPolicy.__name__}",
                policy_kwargs={"target_load": self.target_load, "standby_engines": self.standby_engines},
            ),
        )


class ModelConfig(BaseModel):
    """One of the `models` of an `AppConfig`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    engine: dict[str, Any]  # of an EngineConfig; a relative `model` is looked for in the repository's folder
    num_engines: int = Field(1, ge=1)
    autoscaling: Autoscaling | None = None  # instead: as many as are needed
    num_prefill_engines: int = Field(0, ge=0)  # that compute prompts for the others
    prefill_min_tokens: int = Field(512, ge=1, le=MOST_PROMPT)  # of a prompt that these compute, about
    prefill_memory: float = Field(4.0, ge=LEAST_GIB, le=MOST_HOST_GIB)  # GiB of a node's shared memory for that
    prefill_transport: Transport = "tcp"  # from node to node
    # GiB of a node's shared memory for blocks that an engine which ends hands over; 0: it does not.
    drain_memory: float = Field(4.0, ge=0, le=MOST_HOST_GIB)
    lora_modules: tuple[str, ...] = ()  # NAME=FOLDER of adapters that requests may name as their model
    lora_roots: tuple[str, ...] = ()  # folders below which adapters may be loaded while the server runs

    @property
    def most_engines(self) -> int:
        """At one time, those that compute prompts among them."""
        answering = self.num_engines if self.autoscaling is None else self.autoscaling.max_engines
        return answering + self.num_prefill_engines

    def replicas(self) -> dict[str, Any]:
        """Of the engines' deployment. Raises InvalidConfig."""
        if self.autoscaling is None:
            return {"num_replicas": self.num_engines}
        if "num_engines" in self.model_fields_set:
            raise InvalidConfig(f"num_engines={self.num_engines} and autoscaling exclude each other")
        return {"autoscaling_config": self.autoscaling.for_serve()}

    @property
    def least_engines(self) -> int:
        """That run at the same time when the model is not idle."""
        answering = self.num_engines if self.autoscaling is None else max(1, self.autoscaling.min_engines)
        return answering + self.num_prefill_engines

    def engine_config(self) -> EngineConfig:
        """Raises InvalidConfig."""
        engine = dict(self.engine)
        if isinstance(engine.get("model"), str):
            path = ROOT / engine["model"]
            engine["model"] = str(path) if path.parent.exists() else engine["model"]
        return EngineConfig.create(**engine)

    def deployment_name(self, kind: str, engine: EngineConfig) -> str:
        """Of one of several deployments of a kind."""
        return f"{kind}-{re.sub('[^A-Za-z0-9._]+', '-', engine.model_name)}"

    def _check_prefill(self, engine: EngineConfig) -> None:
        if not self.num_prefill_engines:
            for name in ("prefill_min_tokens", "prefill_memory", "prefill_transport"):
                if (value := getattr(self, name)) != type(self).model_fields[name].default:
                    shown = value if isinstance(value, str) else f"{value:.15g}"
                    raise InvalidConfig(f"{name}={shown} is of no use without num_prefill_engines")
        elif engine.kv_offloading_path is not None and self.prefill_transport != "tcp":
            raise InvalidConfig(
                f"prefill_transport={self.prefill_transport} is of no use with "
                f"kv_offloading_path={engine.kv_offloading_path}, by which blocks go"
            )
        elif not engine.enable_prefix_caching:
            raise InvalidConfig("num_prefill_engines needs enable_prefix_caching, which finds what they have computed")
        elif not engine.host_cache_bytes:
            raise InvalidConfig(
                f"num_prefill_engines needs host memory that blocks pass through; swap_space={engine.swap_space:g} "
                "leaves none"
            )
        elif engine.draft is not None:
            raise InvalidConfig(
                f"num_prefill_engines cannot be used with a draft model ({engine.draft.model}), whose blocks are not "
                "handed over"
            )
        elif engine.max_model_len is not None and self.prefill_min_tokens > engine.max_model_len:
            raise InvalidConfig(
                f"prefill_min_tokens={self.prefill_min_tokens} is above max_model_len={engine.max_model_len}: no "
                "prompt would go to num_prefill_engines"
            )

    def options(self, engine: EngineConfig) -> ModelOptions:
        """For gateways. Raises InvalidConfig; see `read_lora`."""
        self._check_prefill(engine)
        least = self.prefill_min_tokens if self.num_prefill_engines else None
        lora = read_lora(self.lora_modules, self.lora_roots, engine)
        return ModelOptions(
            engine.model_name,
            engine.model,
            lora,
            least,
            prefill_is_shared=engine.kv_offloading_path is None,
            starts_for_requests=self.autoscaling is not None and self.autoscaling.min_engines == 0,
        )


def checked_aliases(given: Aliases, models: Sequence[ModelOptions]) -> dict[str, Alias]:
    """Raises InvalidConfig for these, and for a name that two models have or their adapters, or
    that nobody could give or read.
    """
    own = [model.name for model in models]
    names = own + [adapter.name for model in models for adapter in model.lora.given]
    for name in names:
        if not name.strip() or not name.isprintable():
            raise InvalidConfig(f"models: {name!r} is no name; served_model_name gives another")
        if names.count(name) > 1:
            other = "served_model_name" if name in own else "lora_modules"
            raise InvalidConfig(f"models: two have the name {name!r}; {other} gives another")
    aliases = read_aliases(given, own)
    for name in aliases:
        if name in names:
            raise InvalidConfig(f"aliases: {name!r} is an adapter's name")
    return aliases
