"""Checks whether a configuration is possible and computes what it needs, from the checkpoint's
headers, before anything starts.
"""

import math
from collections.abc import Iterable
from pathlib import Path

from cluster.checkpoint.manifest import check_weights
from cluster.checkpoint.size import Plan, dtype_of, size_up
from cluster.checkpoint.spec import check_architecture, read_spec
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.text.vocabulary import check_same_tokens, check_tokenizer
from parallel.errors import InvalidSharding
from parallel.spec.decoder import DecoderConfig

HEAD_DIMS = {"cpu": range(32, 1 << 16, 32), "triton": (16, 32, 64, 128)}  # that the backends' attention supports


def make_plan(config: EngineConfig) -> Plan:
    """The plan; raises InvalidConfig with what would work."""
    _check_model(config).sampling_defaults(config)  # refused now, not with every request
    if config.draft is not None:
        _check_draft(config, config.draft)
    plan = size_up(config)
    _check_cache(config, plan.max_model_len, plan.cache_bytes_per_token * config.block_size)
    return plan


def check_device(config: EngineConfig, device: str, dtypes: Iterable[str]) -> None:
    """Raises InvalidConfig for what `device` does not compute: the configuration's, or the one that
    "auto" is known to become. `dtypes`: see `Plan`.
    """
    backend = config.ops_backend
    if device == "cpu" and backend != "reference" and "float16" in dtypes:
        whose = " (the checkpoint's)" if config.dtype == "auto" else ""
        raise InvalidConfig(
            f"dtype=float16{whose} is not computed on CPU; --dtype bfloat16 (dtype: bfloat16) or float32 would work"
        )
    if config.kv_cache_dtype != "auto" and (device == "cpu" or backend in ("cpu", "reference")):
        where = f"device={device}" if device == "cpu" else f"ops_backend={backend}"
        raise InvalidConfig(
            f"kv_cache_dtype={config.kv_cache_dtype} is for GPUs and their kernels, not for {where}; auto would work"
        )
    if backend in ("cpu", "triton") and device == {"cpu": "cuda", "triton": "cpu"}[backend]:
        its = {"cpu": "CPUs", "triton": "GPUs"}[backend]
        raise InvalidConfig(f"ops_backend={backend} is for {its}, not for device={device}; auto would work")
    if config.quantization == "fp8" and device == "cpu" and backend != "reference":
        raise InvalidConfig("quantization=fp8 is not computed on CPU; int8 or int4 would work")


def _check_model(config: EngineConfig) -> ModelConfig:
    check_architecture(config.model)
    model = ModelConfig.load(config.model)
    spec = read_spec(model, config.model)
    _check_published(config, spec)
    _check_grid(config, spec)
    _check_tokenizer(config)
    if config.load_format != "dummy":
        check_weights(config.model, spec)
    check_device(config, config.device, (dtype_of(config, model),))
    _check_head_dim(config, model.head_dim)
    return model


def _check_draft(config: EngineConfig, draft: EngineConfig) -> None:
    """As the model; and its tokens are the model's, though config.json may pad them to another
    vocab_size.
    """
    try:
        vocab_size = _check_model(draft).vocab_size
        num_tokens = check_same_tokens(config.tokenizer or config.model, draft.model)
    except InvalidConfig as error:
        raise InvalidConfig(f"speculative_config.model={draft.model}: {error}") from None
    if vocab_size < num_tokens:
        raise InvalidConfig(
            f"speculative_config.model={draft.model}: vocab_size={vocab_size}, and its tokenizer has {num_tokens} ids"
        )


def _check_published(config: EngineConfig, spec: DecoderConfig) -> None:
    """Of a checkpoint that was published quantized: as it is."""
    if (scheme := spec.scheme) is None:
        return
    if config.quantization is not None:
        raise InvalidConfig(
            f"{config.model} is quantized already ({scheme.name}); leave out quantization={config.quantization}"
        )
    if config.load_format == "dummy":
        raise InvalidConfig(
            f"load_format=dummy makes no {scheme.name} weights; use a config.json that is not quantized"
        )
    if config.enable_lora and scheme.kind == "w8a8":
        raise InvalidConfig(
            f"enable_lora: adapters of a model that was published as {scheme.name} are not computed; leave it out, or "
            "serve one whose weights alone are quantized, or the original one with quantization=int8"
        )


def _check_grid(config: EngineConfig, spec: DecoderConfig) -> None:
    try:
        spec.check_sharding(config.tensor_parallel_size, config.pipeline_parallel_size)
    except InvalidSharding as error:
        raise InvalidConfig(str(error)) from None


def _check_head_dim(config: EngineConfig, head_dim: int) -> None:
    """device=auto may become either backend."""
    backends = {"cpu": ("cpu",), "cuda": ("triton",)}.get(config.device, ("cpu", "triton"))
    if config.ops_backend != "reference" and all(head_dim not in HEAD_DIMS[name] for name in backends):
        raise InvalidConfig(
            f"head_dim={head_dim} is not computed by the {' or '.join(backends)} backend; "
            "ops_backend=reference would work"
        )


def _check_tokenizer(config: EngineConfig) -> None:
    check_tokenizer(Path(config.tokenizer or config.model))


def _check_cache(config: EngineConfig, max_model_len: int, block_bytes: int) -> None:
    """Check that the longest sequence fits into a cache of configured size; the first block holds
    none.
    """
    num_blocks = config.num_gpu_blocks_override
    if num_blocks is None and config.kv_cache_memory_bytes is not None:
        num_blocks = config.kv_cache_memory_bytes // block_bytes
    needed = math.ceil(max_model_len / config.block_size) + 1
    if num_blocks is None or num_blocks >= needed:
        return
    num_tokens = (num_blocks - 1) * config.block_size
    less = f"set max_model_len to {num_tokens} or less, or " if num_tokens > 0 else ""
    more = f"kv_cache_memory_bytes to {needed * block_bytes}"
    if config.num_gpu_blocks_override is not None:
        more = f"num_gpu_blocks_override to {needed}"
    whose = "" if config.max_model_len is not None else " (the model's)"
    raise InvalidConfig(
        f"max_model_len={max_model_len}{whose} needs {needed} blocks of the cache, and it has {num_blocks}; "
        f"{less or 'set '}{more} or more"
    )
