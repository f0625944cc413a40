"""Is a configuration possible, and what does it need? Found out from the checkpoint's headers, before anything starts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.manifest import check_small_parts
from cluster.model_sizes import ModelSizes, read_sizes
from cluster.model_tensors import needed_tensors, unused_tensors
from cluster.weight_files import check_tensors, read_tensors
from engine.config import EngineConfig, ModelConfig, resolve_max_model_len
from engine.errors import InvalidConfig
from engine.manifest import Manifest

TENSOR_PARALLEL_SIZES = (1, 2, 4, 8)  # the sums over a layer's ranks meet in one binary tree, of eight leaves at most
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Of a quantized weight: its code, and of integers its part in the scale (2 bytes) of a group of 64.
_QUANTIZED_BYTES = {"int8": 1 + 2 / 64, "int4": 1 / 2 + 2 / 64, "fp8": 1}
HEAD_DIMS = {"cpu": range(32, 1 << 16, 32), "triton": (16, 32, 64, 128)}  # that the backends' attention takes
_EMBEDDING_QUANTIZATION = "int8"  # whichever the layers have


@dataclass(frozen=True, slots=True)
class Plan:
    """What one rank needs at most; `__str__` is what `squadron plan` prints."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    max_model_len: int  # tokens
    weight_bytes: int  # of the stage that has the most
    cache_bytes_per_token: int

    def __str__(self) -> str:
        ranks = self.tensor_parallel_size * self.pipeline_parallel_size
        sequence = self.cache_bytes_per_token * self.max_model_len
        return "\n".join(
            (
                f"ranks                 {ranks} (TP={self.tensor_parallel_size} × PP={self.pipeline_parallel_size})",
                f"weights a rank        {_human(self.weight_bytes)}",
                f"cache a token, a rank {_human(self.cache_bytes_per_token)}",
                f"longest sequence      {self.max_model_len} tokens, {_human(sequence)} of cache a rank",
            )
        )


def make_plan(config: EngineConfig) -> Plan:
    """The plan, or InvalidConfig with what would work."""
    model = ModelConfig.load(config.model)
    max_model_len = resolve_max_model_len(config, model)
    sizes = read_sizes(model, config.model)
    _check_grid(config, model, sizes)
    _check_tokenizer(config)
    if config.load_format != "dummy":
        check_weights(config.model, model)
    dtype = model.torch_dtype if config.dtype == "auto" else config.dtype
    _check_dtype(config, dtype)
    _check_quantization(config)
    _check_head_dim(config, model.head_dim)
    num_layers = _most_layers(config, model, sizes)
    kv_heads = math.ceil(model.num_key_value_heads / config.tensor_parallel_size)
    cell_bytes = _DTYPE_BYTES[dtype] if config.kv_cache_dtype == "auto" else 1
    cache_bytes_per_token = 2 * num_layers * kv_heads * model.head_dim * cell_bytes
    return Plan(
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=config.pipeline_parallel_size,
        max_model_len=_fit_cache(config, max_model_len, cache_bytes_per_token * config.block_size),
        weight_bytes=_weight_bytes(config, model, sizes, dtype, num_layers, kv_heads),
        cache_bytes_per_token=cache_bytes_per_token,
    )


def check_weights(model_folder: str, model: ModelConfig) -> None:
    """Raise InvalidConfig unless the weight files' headers hold the model's tensors, and are as in the manifest."""
    folder = Path(model_folder)
    needed = needed_tensors(model, read_sizes(model, model_folder))
    check_tensors(folder, read_tensors(folder), needed, unused_tensors(model))
    manifest = Manifest.load(model_folder)
    if manifest is not None:
        check_small_parts(folder, manifest)


def _check_grid(config: EngineConfig, model: ModelConfig, sizes: ModelSizes) -> None:
    tp, pp = config.tensor_parallel_size, config.pipeline_parallel_size
    heads, kv_heads, others = model.num_attention_heads, model.num_key_value_heads, sizes.dealt_out
    possible = [
        size
        for size in TENSOR_PARALLEL_SIZES
        if all(count % size == 0 for count in (heads, *others.values()))
        and (size % kv_heads == 0 or kv_heads % size == 0)
    ]
    if tp not in possible:
        counts = " and ".join(f"{count} {name}" for name, count in others.items())
        raise InvalidConfig(
            f"tensor_parallel_size={tp} does not divide the model's {heads} attention heads ({kv_heads} of keys and values) "
            f"and {counts} by {_either(list(TENSOR_PARALLEL_SIZES))}; use {_either(possible)}"
        )
    if pp > model.num_hidden_layers:
        raise InvalidConfig(
            f"pipeline_parallel_size={pp} exceeds the model's {model.num_hidden_layers} layers; "
            f"use {model.num_hidden_layers} or less"
        )


def _check_dtype(config: EngineConfig, dtype: str) -> None:
    if dtype == "float16" and config.device == "cpu" and config.ops_backend != "reference":
        whose = " (the checkpoint's)" if config.dtype == "auto" else ""
        raise InvalidConfig(f"dtype=float16{whose} is not computed on CPU; float32 or bfloat16 would work")


def _check_quantization(config: EngineConfig) -> None:
    if config.quantization == "fp8" and config.device == "cpu" and config.ops_backend != "reference":
        raise InvalidConfig("quantization=fp8 is not computed on CPU; int8 or int4 would work")


def _check_head_dim(config: EngineConfig, head_dim: int) -> None:
    """device=auto may turn out to be either."""
    backends = {"cpu": ("cpu",), "cuda": ("triton",)}.get(config.device, ("cpu", "triton"))
    if config.ops_backend != "reference" and all(head_dim not in HEAD_DIMS[name] for name in backends):
        raise InvalidConfig(
            f"head_dim={head_dim} is not computed by the {_either(backends)} backend; ops_backend=reference would work"
        )


def _check_tokenizer(config: EngineConfig) -> None:
    tokenizer = Path(config.tokenizer or config.model) / "tokenizer.json"
    if not tokenizer.exists():
        raise InvalidConfig(f"{tokenizer} does not exist; name a folder that holds one with tokenizer")


def _fit_cache(config: EngineConfig, max_model_len: int, block_bytes: int) -> int:
    """The longest sequence, in tokens, that a cache of the size that is given holds; the first block is nobody's."""
    num_blocks = config.num_gpu_blocks_override
    if num_blocks is None and config.kv_cache_memory_bytes is not None:
        num_blocks = config.kv_cache_memory_bytes // block_bytes
    if num_blocks is None:
        return max_model_len
    needed = math.ceil(max_model_len / config.block_size) + 1
    if num_blocks < 2:
        raise InvalidConfig(
            f"kv_cache_memory_bytes={config.kv_cache_memory_bytes} holds no block; one takes {block_bytes} bytes a rank, "
            f"the longest sequence {needed * block_bytes}"
        )
    num_tokens = (num_blocks - 1) * config.block_size
    if config.max_model_len is not None and num_tokens < max_model_len:
        raise InvalidConfig(
            f"max_model_len={max_model_len} needs {needed} blocks of the cache, and it has {num_blocks}; "
            f"use {num_tokens} or less, or give the cache more memory"
        )
    return min(max_model_len, num_tokens)


def _most_layers(config: EngineConfig, model: ModelConfig, sizes: ModelSizes) -> int:
    """Of the stage that has the most: the last one has fewer, since the head counts too, as half of its weights."""
    if config.pipeline_parallel_size == 1:
        return model.num_hidden_layers
    tensors = needed_tensors(model, sizes).items()
    layers = sum(math.prod(shape) for name, shape in tensors if name.startswith("model.layers."))
    head = model.vocab_size * model.hidden_size * model.num_hidden_layers / layers / 2
    first = config.pipeline_parallel_size - 1
    fair = round((model.num_hidden_layers + head) / (first + 1) - head)
    last = min(max(fair, 1), model.num_hidden_layers - first)
    return max(last, math.ceil((model.num_hidden_layers - last) / first))


def _weight_bytes(
    config: EngineConfig, model: ModelConfig, sizes: ModelSizes, dtype: str, num_layers: int, kv_heads: int
) -> int:
    """Of the rank that has the most; biases and the norms of heads, which are few, are left out."""
    tp = config.tensor_parallel_size
    hidden, head_dim = model.hidden_size, model.head_dim
    attention = 2 * hidden * (model.num_attention_heads // tp) * head_dim + 2 * hidden * kv_heads * head_dim
    embedding = model.vocab_size * hidden // tp
    is_tied = bool(model.hf_config.get("tie_word_embeddings"))
    num_embeddings = 1 if is_tied or config.pipeline_parallel_size > 1 else 2
    matrices = num_layers * attention + sizes.num_weights(num_layers, hidden, tp)
    plain: float = _DTYPE_BYTES[dtype]
    of_layers = of_embeddings = plain
    if config.quantization is not None:
        of_layers = _QUANTIZED_BYTES[config.quantization]
        of_embeddings = _QUANTIZED_BYTES[_EMBEDDING_QUANTIZATION]
    norms = 2 * hidden * num_layers
    return math.ceil(matrices * of_layers + norms * plain + num_embeddings * embedding * of_embeddings)


def _either(sizes: Sequence[object]) -> str:
    return " or ".join((", ".join(map(str, sizes[:-1])), str(sizes[-1]))) if len(sizes) > 1 else str(sizes[0])


def _human(num_bytes: int) -> str:
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"
