"""The bytes that one rank of a configuration holds, from the model's description alone."""

import math
from dataclasses import dataclass

from cluster.checkpoint.spec import read_spec
from cluster.memory import human
from engine.checkpoint.model_config import ModelConfig, resolve_max_model_len
from engine.config import EngineConfig, default_cpu_blocks
from parallel.spec.decoder import DecoderConfig
from parallel.spec.published.scheme import Scheme

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Bytes of a quantized weight: its code, and for integers its share of the 2-byte scale of a group
# of 64.
_QUANTIZED_BYTES = {"int8": 1 + 2 / 64, "int4": 1 / 2 + 2 / 64, "fp8": 1}
_LONGEST_RUN = 128  # inputs that share a scale, of a checkpoint that was published quantized
_EMBEDDING_QUANTIZATION = "int8"  # of whatever kind the layers have


@dataclass(frozen=True, slots=True)
class Plan:
    """The most that one rank needs; `__str__` is what `squadron plan` prints."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    max_model_len: int  # tokens
    dtypes: tuple[str, ...]  # that are computed in, by the model and by a draft model
    weight_bytes: int  # of the stage with the most, and of a draft model
    cache_bytes_per_token: int
    cache_bytes: int  # as configured, or the CPU's default
    adapter_bytes: int = 0  # of as many adapters as a rank keeps, of the highest rank there may be
    draft_bytes: int = 0  # of the weights, those of a draft model: it lies on one rank, of the last stage

    def __str__(self) -> str:
        ranks = self.tensor_parallel_size * self.pipeline_parallel_size
        sequence = self.cache_bytes_per_token * self.max_model_len
        draft = (f"draft model           {human(self.draft_bytes)} of these, on one rank",) if self.draft_bytes else ()
        adapters = (f"adapters a rank       {human(self.adapter_bytes)}",) if self.adapter_bytes else ()
        return "\n".join(
            (
                f"ranks                 {ranks} (TP={self.tensor_parallel_size} × PP={self.pipeline_parallel_size})",
                f"weights a rank        {human(self.weight_bytes)}",
                *draft,
                *adapters,
                f"cache a token, a rank {human(self.cache_bytes_per_token)}",
                f"longest sequence      {self.max_model_len} tokens, {human(sequence)} of cache a rank",
            )
        )


def size_up(config: EngineConfig) -> Plan:
    """The plan of a configuration that has been checked."""
    model = ModelConfig.load(config.model)
    spec = read_spec(model, config.model)
    max_model_len, dtype = resolve_max_model_len(config, model), dtype_of(config, model)
    cache_bytes_per_token = _cache_bytes_per_token(config, model, spec)
    draft_bytes, dtypes = 0, [dtype]
    if (draft := config.draft) is not None:
        draft_model = ModelConfig.load(draft.model)
        draft_spec = read_spec(draft_model, draft.model)
        cache_bytes_per_token += _cache_bytes_per_token(draft, draft_model, draft_spec)
        dtypes.append(dtype_of(draft, draft_model))
        draft_bytes = _weight_bytes(draft, draft_spec, dtypes[-1])
    return Plan(
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=config.pipeline_parallel_size,
        max_model_len=max_model_len,
        dtypes=tuple(dtypes),
        weight_bytes=_weight_bytes(config, spec, dtype) + draft_bytes,
        cache_bytes_per_token=cache_bytes_per_token,
        cache_bytes=_cache_bytes(config, max_model_len, cache_bytes_per_token * config.block_size),
        adapter_bytes=_adapter_bytes(config, spec, dtype),
        draft_bytes=draft_bytes,
    )


def dtype_of(config: EngineConfig, model: ModelConfig) -> str:
    return model.torch_dtype if config.dtype == "auto" else config.dtype


def _cache_bytes_per_token(config: EngineConfig, model: ModelConfig, spec: DecoderConfig) -> int:
    num_layers = max(len(layers) for layers in spec.stages(config.pipeline_parallel_size))
    kv_heads = math.ceil(model.num_key_value_heads / config.tensor_parallel_size)
    cell_bytes = _DTYPE_BYTES[dtype_of(config, model)] if config.kv_cache_dtype == "auto" else 1
    return 2 * num_layers * kv_heads * model.head_dim * cell_bytes


def _cache_bytes(config: EngineConfig, max_model_len: int, block_bytes: int) -> int:
    if config.num_gpu_blocks_override is not None:
        return config.num_gpu_blocks_override * block_bytes
    return config.kv_cache_memory_bytes or default_cpu_blocks(config, max_model_len, block_bytes) * block_bytes


def _weight_bytes(config: EngineConfig, spec: DecoderConfig, dtype: str) -> int:
    """Of the rank with the most; the few biases and norms of heads are left out."""
    plain: float = _DTYPE_BYTES[dtype]
    of_layers = of_embeddings = plain
    if config.quantization is not None:
        of_layers = _QUANTIZED_BYTES[config.quantization]
        of_embeddings = _QUANTIZED_BYTES[_EMBEDDING_QUANTIZATION]
    if spec.scheme is not None:
        of_layers = _published_bytes(spec.scheme)
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


def _published_bytes(scheme: Scheme) -> float:
    """Of a weight: its code, and its share of a 4-byte scale and a 2-byte zero point for 128 inputs
    or fewer. What is stored as it is counts alike.
    """
    return scheme.bits / 8 + 6 / min(scheme.group_size or _LONGEST_RUN, _LONGEST_RUN)


def _adapter_bytes(config: EngineConfig, spec: DecoderConfig, dtype: str) -> int:
    """Each linear of a dense layer has one matrix of its inputs and one of its outputs; a rank has
    its share of one of the two, and the other whole.
    """
    layer, tp = spec.layer, config.tensor_parallel_size
    heads, kv_heads = (count * layer.head_dim for count in (layer.num_heads, layer.num_kv_heads))
    hidden, inner = layer.hidden_size, 0 if spec.moe else layer.intermediate_size
    cut = 2 * heads + 2 * kv_heads + 3 * inner
    whole = 4 * hidden + (3 * hidden if inner else 0)
    num_layers = max(len(layers) for layers in spec.stages(config.pipeline_parallel_size))
    of_one = config.max_lora_rank * num_layers * (math.ceil(cut / tp) + whole) * _DTYPE_BYTES[dtype]
    return config.num_device_adapters * of_one


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
