"""A rank's shard of the model: the backend that computes it, and its layers."""

import torch

import ops
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.worker.ranks import Ranks
from ops.interface import Ops
from parallel.decoder import Decoder
from parallel.errors import InvalidSharding, UnsupportedModel
from parallel.spec import read

_REFUSALS = (UnsupportedModel, InvalidSharding, ops.UnavailableBackend)


def make_model(config: EngineConfig, model_config: ModelConfig, ranks: Ranks, device: torch.device) -> Decoder:
    """Without weights. Raises InvalidConfig."""
    try:
        return _build(config, model_config, ranks, device)
    except _REFUSALS as error:
        raise InvalidConfig(str(error)) from None


def _build(config: EngineConfig, model_config: ModelConfig, ranks: Ranks, device: torch.device) -> Decoder:
    shape = read(model_config.hf_config)
    # Products of quantized weights are exact as well as fast.
    exact = config.exact or shape.scheme is not None
    backend = ops.select(config.ops_backend, device, config.quantization, exact=exact)
    dtype = getattr(torch, model_config.torch_dtype if config.dtype == "auto" else config.dtype)
    if dtype is torch.float16 and backend.NAME == "cpu":
        raise InvalidConfig(
            "dtype=float16 is not computed on CPU; --dtype bfloat16 (dtype: bfloat16) or float32 would work"
        )
    check_cache_dtype(config.kv_cache_dtype, backend, device)
    if shape.scheme is not None and shape.scheme.kind == "fp8" and backend.NAME.startswith("triton"):
        check_published_float8(shape.scheme.name, device)
    model = Decoder(shape, ops=backend, tp=ranks.tp, stage=ranks.stage, dtype=dtype, device=device)
    if model.head_dim not in backend.HEAD_DIMS:
        raise InvalidConfig(
            f"head_dim={model.head_dim} is not computed by the {backend.NAME} backend; ops_backend=reference would work"
        )
    return model


def check_published_float8(name: str, device: torch.device) -> None:
    """Raise InvalidConfig unless the device converts a checkpoint's float8 weights."""
    if (reason := ops.no_float8_reason(device)) is not None:
        raise InvalidConfig(f"the checkpoint is quantized ({name}), which {reason}; its int4 or int8 form would work")


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
