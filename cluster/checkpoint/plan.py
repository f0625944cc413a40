"""Checks whether a configuration is possible and computes what it needs, from the checkpoint's
headers, before anything starts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.checkpoint.files import check_tensors, read_tensors
from cluster.checkpoint.manifest import check_small_parts
from cluster.checkpoint.spec import read_spec
from cluster.memory import human
from engine.checkpoint.manifest import Manifest
from engine.checkpoint.model_config import ModelConfig, resolve_max_model_len
from engine.config import EngineConfig, default_cpu_blocks
from engine.errors import InvalidConfig
from engine.text.chat_template import find_template
from engine.text.tokenizer import read_settings
from parallel.errors import InvalidSharding
from parallel.spec.decoder import DecoderConfig

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Bytes of a quantized weight: its code, and for integers its share of the 2-byte scale of a group
# of 64.
_QUANTIZED_BYTES = {"int8": 1 + 2 / 64, "int4": 1 / 2 + 2 / 64, "fp8": 1}
HEAD_DIMS = {"cpu": range(32, 1 << 16, 32), "triton": (16, 32, 64, 128)}  # that the backends' attention supports
_EMBEDDING_QUANTIZATION = "int8"  # of whatever kind the layers have


@dataclass(frozen=True, slots=True)
class Plan:
    """The most that one rank needs; `__str__` is what `squadron plan` prints."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    max_model_len: int  # tokens
    weight_bytes: int  # of the stage with the most
    cache_bytes_per_token: int
    cache_bytes: int  # as configured, or the CPU's default

    def __str__(self) -> str:
        ranks = self.tensor_parallel_size * self.pipeline_parallel_size
        sequence = self.cache_bytes_per_token * self.max_model_len
        return "\n".join(
            (
                f"ranks                 {ranks} (TP={self.tensor_parallel_size} × PP={self.pipeline_parallel_size})",
                f"weights a rank        {human(self.weight_bytes)}",
                f"cache a token, a rank {human(self.cache_bytes_per_token)}",
                f"longest sequence      {self.max_model_len} tokens, {human(sequence)} of cache a rank",
            )
        )


def make_plan(config: EngineConfig) -> Plan:
    """The plan; raises InvalidConfig with what would work."""
    model = ModelConfig.load(config.model)
    _check_checkpoint(config, model)
    spec = read_spec(model, config.model)
    _check_grid(config, spec)
    _check_tokenizer(config)
    if config.load_format != "dummy":
        check_weights(config.model, spec)
    _check_dtype(config, _dtype(config, model))
    _check_quantization(config)
    _check_head_dim(config, model.head_dim)
    plan = size_up(config)
    _check_cache(config, plan.max_model_len, plan.cache_bytes_per_token * config.block_size)
    return plan


def size_up(config: EngineConfig) -> Plan:
    """The plan of a configuration that has been checked."""
    model = ModelConfig.load(config.model)
    spec = read_spec(model, config.model)
    max_model_len, dtype = resolve_max_model_len(config, model), _dtype(config, model)
    num_layers = max(len(layers) for layers in spec.stages(config.pipeline_parallel_size))
    kv_heads = math.ceil(model.num_key_value_heads / config.tensor_parallel_size)
    cell_bytes = _DTYPE_BYTES[dtype] if config.kv_cache_dtype == "auto" else 1
    cache_bytes_per_token = 2 * num_layers * kv_heads * model.head_dim * cell_bytes
    return Plan(
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=config.pipeline_parallel_size,
        max_model_len=max_model_len,
        weight_bytes=_weight_bytes(config, spec, dtype),
        cache_bytes_per_token=cache_bytes_per_token,
        cache_bytes=_cache_bytes(config, max_model_len, cache_bytes_per_token * config.block_size),
    )


def _dtype(config: EngineConfig, model: ModelConfig) -> str:
    return model.torch_dtype if config.dtype == "auto" else config.dtype


def _cache_bytes(config: EngineConfig, max_model_len: int, block_bytes: int) -> int:
    if config.num_gpu_blocks_override is not None:
        return config.num_gpu_blocks_override * block_bytes
    return config.kv_cache_memory_bytes or default_cpu_blocks(config, max_model_len, block_bytes) * block_bytes


def check_weights(model_folder: str, spec: DecoderConfig) -> None:
    """Raises InvalidConfig unless the weight files' headers list the model's tensors and match the
    manifest.
    """
    folder = Path(model_folder)
    check_tensors(folder, read_tensors(folder), spec.shapes(), spec.unused)
    manifest = Manifest.load(model_folder)
    if manifest is not None:
        check_small_parts(folder, manifest)


def _check_checkpoint(config: EngineConfig, model: ModelConfig) -> None:
    """Reject quantized checkpoints: config.json has this field, whatever their tensors are
    called.
    """
    found = model.hf_config.get("quantization_config")
    if found is not None:
        method = found.get("quant_method", "some method") if isinstance(found, dict) else found
        raise InvalidConfig(
            f"{config.model} is quantized already (config.json: quantization_config, by {method}), which is not "
            "served; get the checkpoint that it was made of, and serve that with quantization=int4 or int8"
        )


def _check_grid(config: EngineConfig, spec: DecoderConfig) -> None:
    try:
        spec.check_sharding(config.tensor_parallel_size, config.pipeline_parallel_size)
    except InvalidSharding as error:
        raise InvalidConfig(str(error)) from None


def _check_dtype(config: EngineConfig, dtype: str) -> None:
    if dtype == "float16" and config.device == "cpu" and config.ops_backend != "reference":
        whose = " (the checkpoint's)" if config.dtype == "auto" else ""
        raise InvalidConfig(f"dtype=float16{whose} is not computed on CPU; float32 or bfloat16 would work")


def _check_quantization(config: EngineConfig) -> None:
    if config.quantization == "fp8" and config.device == "cpu" and config.ops_backend != "reference":
        raise InvalidConfig("quantization=fp8 is not computed on CPU; int8 or int4 would work")


def _check_head_dim(config: EngineConfig, head_dim: int) -> None:
    """device=auto may become either backend."""
    backends = {"cpu": ("cpu",), "cuda": ("triton",)}.get(config.device, ("cpu", "triton"))
    if config.ops_backend != "reference" and all(head_dim not in HEAD_DIMS[name] for name in backends):
        raise InvalidConfig(
            f"head_dim={head_dim} is not computed by the {_either(backends)} backend; ops_backend=reference would work"
        )


def _check_tokenizer(config: EngineConfig) -> None:
    folder = Path(config.tokenizer or config.model)
    if not (folder / "tokenizer.json").exists():
        raise InvalidConfig(f"{folder / 'tokenizer.json'} does not exist; name a folder that holds one with tokenizer")
    find_template(folder, read_settings(folder))


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


def _weight_bytes(config: EngineConfig, spec: DecoderConfig, dtype: str) -> int:
    """Of the rank with the most; the few biases and norms of heads are left out."""
    plain: float = _DTYPE_BYTES[dtype]
    of_layers = of_embeddings = plain
    if config.quantization is not None:
        of_layers = _QUANTIZED_BYTES[config.quantization]
        of_embeddings = _QUANTIZED_BYTES[_EMBEDDING_QUANTIZATION]
    hidden = spec.layer.hidden_size
    num_embeddings = 1 if spec.has_tied_embeddings or config.pipeline_parallel_size > 1 else 2
    embeddings = num_embeddings * spec.vocab_size * hidden // config.tensor_parallel_size
    return math.ceil(
        embeddings * of_embeddings
        + max(
            sum(_layer_weights(spec, index, config.tensor_parallel_size) for index in layers) * of_layers
            + 2 * hidden * len(layers) * plain
            for layers in spec.stages(config.pipeline_parallel_size)
        )
    )


def _layer_weights(spec: DecoderConfig, index: int, tp: int) -> int:
    """Numbers in one rank's matrices of a layer. If there are fewer key-value heads than ranks,
    several ranks hold the same one.
    """
    layer, moe = spec.layer, spec.moe_of(index)
    heads = layer.num_heads // tp + math.ceil(layer.num_kv_heads / tp)
    attention = 2 * layer.hidden_size * heads * layer.head_dim
    if moe is None:
        return attention + 3 * layer.hidden_size * layer.intermediate_size // tp
    inner = moe.num_experts * moe.intermediate_size + moe.shared_intermediate_size
    router = moe.num_experts + (moe.shared_intermediate_size > 0)
    return attention + 3 * layer.hidden_size * inner // tp + layer.hidden_size * router


def _either(sizes: Sequence[object]) -> str:
    return " or ".join((", ".join(map(str, sizes[:-1])), str(sizes[-1]))) if len(sizes) > 1 else str(sizes[0])
