"""An engine's configuration as a whole: its fields, and which of them exclude each other."""

from collections.abc import Iterable
from typing import Any, Self

from pydantic import ValidationError

from engine.config.explaining import explain
from engine.config.fields import EngineFields
from engine.config.kv_events import KVEventsConfig
from engine.config.names import local_path
from engine.config.speculation import OF_DRAFT, SpeculativeConfig
from engine.errors import InvalidConfig

MIN_SECRET = 16  # characters


class EngineConfig(EngineFields):
    """Everything an engine is started with; names and defaults are those of the field."""

    @classmethod
    def create(cls, also_known: Iterable[str] = (), **arguments: Any) -> Self:
        """An `EngineConfig`; raises `InvalidConfig` with one sentence. `also_known`: further keys
        that a misspelt one may have meant.
        """
        try:
            config = cls(**arguments)
            config = config.model_copy(update={"model": local_path(config.model)})
            if config.draft is not None:
                config = config.with_draft(config.draft.model_copy(update={"model": local_path(config.draft.model)}))
        except ValidationError as error:
            nested = [f"speculative_config.{name}" for name in SpeculativeConfig.model_fields]
            nested += [f"kv_events_config.{name}" for name in KVEventsConfig.model_fields]
            raise InvalidConfig(explain(error, [*cls.model_fields, *nested, *also_known])) from None
        if config.max_num_batched_tokens < config.max_num_seqs:
            raise InvalidConfig(
                f"max_num_batched_tokens={config.max_num_batched_tokens} is below max_num_seqs={config.max_num_seqs}: "
                "a step could not give each running sequence a token"
            )
        if config.speculative_config is not None:
            config.speculative_config.check()
        _check_devices(config)
        _check_tiers(config)
        if config.max_cpu_loras is not None and config.max_cpu_loras < config.max_loras:
            raise InvalidConfig(
                f"max_cpu_loras={config.max_cpu_loras} is below max_loras={config.max_loras}: a step's adapters must "
                "be kept for it"
            )
        return config

    @property
    def draft(self) -> Self | None:
        """That of the draft model, as if one rank served it alone; None if there is none."""
        own = self.speculative_config
        if own is None or own.model is None:
            return None
        return self.model_copy(
            update={name: getattr(own, name) for name in OF_DRAFT}
            | {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "served_model_name": None}
            | {"tokenizer": None, "enable_lora": False, "speculative_config": None}
        )

    @property
    def moves_blocks(self) -> bool:
        """Whether blocks of its cache can be found, and moved to the host and beyond."""
        return self.enable_prefix_caching and self.host_cache_bytes > 0 and self.draft is None

    def with_draft(self, draft: Self) -> Self:
        """The same with another `draft`."""
        assert self.speculative_config is not None
        names = self.speculative_config.model_copy(update={name: getattr(draft, name) for name in OF_DRAFT})
        return self.model_copy(update={"speculative_config": names})


def _check_devices(config: EngineConfig) -> None:
    """Raises InvalidConfig for what the configured device or executor excludes, whatever machine it
    is.
    """
    if config.distributed_executor_backend == "local" and config.world_size > 1:
        raise InvalidConfig(
            f"distributed_executor_backend=local runs one rank, not tensor_parallel_size="
            f"{config.tensor_parallel_size} × pipeline_parallel_size={config.pipeline_parallel_size}; use ray"
        )
    if config.accelerator_type is not None and config.device == "cpu":
        raise InvalidConfig(f"accelerator_type={config.accelerator_type} is a kind of GPU, and device=cpu uses none")


def _check_tiers(config: EngineConfig) -> None:
    """Raises InvalidConfig for keys of the cache's tiers of which one makes another useless."""
    path, fields = config.kv_offloading_path, EngineConfig.model_fields
    if path is None and config.kv_offloading_path_size != fields["kv_offloading_path_size"].default:
        raise InvalidConfig(
            f"kv_offloading_path_size={config.kv_offloading_path_size:g} bounds a folder, and kv_offloading_path "
            "names none"
        )
    if config.kv_offloading_size is not None and config.swap_space != fields["swap_space"].default:
        raise InvalidConfig(
            f"kv_offloading_size={config.kv_offloading_size:g}, of all ranks, takes the place of "
            f"swap_space={config.swap_space:g}, of each: set one of them"
        )
    if path is not None and not config.enable_prefix_caching:
        raise InvalidConfig(f"kv_offloading_path={path} needs enable_prefix_caching, which finds what is there")
    if path is not None and not config.host_cache_bytes:
        raise InvalidConfig(
            f"kv_offloading_path={path} needs host memory that blocks pass through; swap_space={config.swap_space:g} "
            "leaves none"
        )
    if path is not None and config.draft is not None:
        raise InvalidConfig(
            f"kv_offloading_path={path} cannot be used with a draft model ({config.draft.model}), whose blocks are "
            "not stored"
        )
    if config.kv_role != "both" and path is None:
        raise InvalidConfig(f"kv_role={config.kv_role} is of no use without kv_offloading_path")
    _check_leaving(config)
    _check_peer_secret(config)


def _check_leaving(config: EngineConfig) -> None:
    """Raises InvalidConfig for an engine that could not leave any blocks to others."""
    if config.kv_leaving_path is not None and not config.kv_leaving_size:
        raise InvalidConfig(f"kv_leaving_path={config.kv_leaving_path} is of no use without kv_leaving_size")
    if config.kv_leaving_size and not config.moves_blocks:
        raise InvalidConfig(
            f"kv_leaving_size={config.kv_leaving_size:g} needs enable_prefix_caching, host memory and no draft model"
        )


def _check_peer_secret(config: EngineConfig) -> None:
    """Raises InvalidConfig, which does not show it, for one that nobody would use, or might
    guess.
    """
    secret, path = config.kv_peer_secret, config.kv_offloading_path
    if secret is None:
        if config.kv_peer_transport != "tcp":
            raise InvalidConfig(f"kv_peer_transport={config.kv_peer_transport} is of no use without kv_peer_secret")
        return
    if len(secret) < MIN_SECRET:
        raise InvalidConfig(f"kv_peer_secret has {len(secret)} characters, and needs {MIN_SECRET} or more")
    if config.kv_leaving_size:
        return
    if path is None:
        raise InvalidConfig("kv_peer_secret is of no use without kv_offloading_path, whose blocks are served by it")
    if config.kv_role == "both":
        raise InvalidConfig("kv_peer_secret is of no use with kv_role=both: a producer serves consumers by it")
    if "://" in path and not path.startswith("file:"):
        raise InvalidConfig(f"kv_peer_secret is of no use with kv_offloading_path={path}, which all nodes read")
