"""A rank's shard of the model: the backend that computes it, its layers, and its weights."""

import torch

import ops
from engine.checkpoint.manifest import Manifest
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.worker.device.errors import out_of_memory_advice
from engine.worker.ranks import Ranks
from ops.interface import Ops
from parallel.decoder import Decoder
from parallel.errors import InvalidCheckpoint, InvalidSharding, UnsupportedModel
from parallel.spec import read

_REFUSALS = (UnsupportedModel, InvalidSharding, InvalidCheckpoint, ops.UnavailableBackend)


def load_model(config: EngineConfig, model_config: ModelConfig, ranks: Ranks, device: torch.device) -> Decoder:
    """Raises InvalidConfig."""
    advice = "raise tensor_parallel_size or pipeline_parallel_size, or set quantization to int8 or int4"
    try:
        with out_of_memory_advice("the weights were loaded", advice):
            model = _build(config, model_config, ranks, device)
            _load_weights(model, config, ranks)
            return model
    except _REFUSALS as error:
        raise InvalidConfig(str(error)) from None


def _build(config: EngineConfig, model_config: ModelConfig, ranks: Ranks, device: torch.device) -> Decoder:
    """Without weights."""
    backend = ops.select(config.ops_backend, device, config.quantization, exact=config.exact)
    if config.enable_lora and backend.NAME.startswith("triton"):
        raise InvalidConfig(f"enable_lora: the {backend.NAME} backend computes no adapters; device=cpu would work")
    dtype = getattr(torch, model_config.torch_dtype if config.dtype == "auto" else config.dtype)
    if dtype is torch.float16 and backend.NAME == "cpu":
        raise InvalidConfig(
            "dtype=float16 is not computed on CPU; --dtype bfloat16 (dtype: bfloat16) or float32 would work"
        )
    check_cache_dtype(config.kv_cache_dtype, backend, device)
    shape = read(model_config.hf_config)
    model = Decoder(shape, ops=backend, tp=ranks.tp, stage=ranks.stage, dtype=dtype, device=device)
    if model.head_dim not in backend.HEAD_DIMS:
        raise InvalidConfig(
            f"head_dim={model.head_dim} is not computed by the {backend.NAME} backend; ops_backend=reference would work"
        )
    return model


def _load_weights(model: Decoder, config: EngineConfig, ranks: Ranks) -> None:
    if config.load_format == "dummy":
        model.load_dummy_weights(config.seed)
        return
    # A stage's ranks share a node, so each tensor of its files is verified there once.
    manifest = Manifest.load(config.model)
    digests = {} if manifest is None else manifest.share(ranks.tp.rank, ranks.tp.size)
    model.load_weights(config.model, digests)


def check_cache_dtype(name: str, backend: Ops, device: torch.device) -> None:
    """Raise InvalidConfig unless the backend can keep keys and values as kv_cache_dtype=name
    says.
    """
    if name == "auto":
        return
    if not backend.NAME.startswith("triton"):
        raise InvalidConfig(f"kv_cache_dtype={name} is for GPUs; auto would work")
    if (reason := ops.no_float8_reason(device)) is not None:
        raise InvalidConfig(f"kv_cache_dtype={name} {reason}; auto would work")
