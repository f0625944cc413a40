"""Checkpoints of a known shape with random weights, in Hugging Face layout: for performance work,
where only shapes matter.
"""

import json
import math
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from cluster.checkpoint.shapes import CLASS_NAMES, Shape
from engine.errors import InvalidConfig
from parallel.spec import read

SHARD_BYTES = 5 * 10**9
DEVIATION = 0.02  # standard deviation of the weights: Qwen2's initializer_range
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
DEMO = Path(__file__).resolve().parents[2] / "configs" / "demo"


def make_checkpoint(
    folder: Path,
    shape: Shape,
    *,
    seed: int = 0,
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Write config.json, the demo checkpoint's tokenizer and bf16 weights that depend on `seed` and
    their names alone.

    `progress` is called with each tensor's bytes once written. `folder` was made by `make_folder`.
    """
    for name in TOKENIZER_FILES:
        shutil.copyfile(DEMO / name, folder / name)
    shards = list(_shards(_tensors(shape), shard_bytes))
    names = [_shard_name(number, len(shards)) for number in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        _write_shard(folder / name, shard, seed, progress)
    if len(shards) > 1:
        weight_map = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        index = {"metadata": {"total_size": num_bytes(shape)}, "weight_map": weight_map}
        _write_json(folder / "model.safetensors.index.json", index)
    _write_json(folder / "config.json", hf_config(shape))


def make_folder(folder: Path) -> None:
    """Make a folder for a checkpoint; raises InvalidConfig if it holds one already, or cannot be
    made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidConfig(f"{folder} cannot be made: {error.strerror}") from None
    if (folder / "config.json").exists():
        raise InvalidConfig(f"{folder} holds a checkpoint already")


def num_bytes(shape: Shape) -> int:
    return sum(_bytes_of(size) for size in _tensors(shape).values())


def _tensors(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Name and shape of each tensor, in the order of writing."""
    return read(hf_config(shape)).shapes()


def _bytes_of(size: tuple[int, ...]) -> int:
    return 2 * math.prod(size)


def _shards(tensors: dict[str, tuple[int, ...]], shard_bytes: int) -> Iterator[dict[str, tuple[int, ...]]]:
    """Files of at most `shard_bytes`, with at least one tensor each."""
    shard: dict[str, tuple[int, ...]] = {}
    used = 0
    for name, size in tensors.items():
        if shard and used + _bytes_of(size) > shard_bytes:
            yield shard
            shard, used = {}, 0
        shard[name] = size
        used += _bytes_of(size)
    yield shard


def _shard_name(number: int, total: int) -> str:
    return "model.safetensors" if total == 1 else f"model-{number + 1:05}-of-{total:05}.safetensors"


def _write_shard(path: Path, shard: dict[str, tuple[int, ...]], seed: int, progress: Callable[[int], None]) -> None:
    """The safetensors format: header length (uint64), JSON header padded with spaces to 8 bytes,
    then the data.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, size in shard.items():
        start, end = end, end + _bytes_of(size)
        header[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, size in shard.items():
            for rows in _weights(name, size, seed):
                file.write(rows.tobytes())
            progress(_bytes_of(size))


def _weights(name: str, size: tuple[int, ...], seed: int) -> Iterator[np.ndarray]:
    """A tensor's bf16 bits (uint16), some rows at a time: ones for norms, else normal numbers."""
    if "norm" in name:
        yield np.full(size, 0x3F80, dtype="<u2")
        return
    generator = np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(name.encode())]))
    total, part = math.prod(size), 1 << 24
    for start in range(0, total, part):
        values = generator.standard_normal(min(part, total - start), dtype=np.float32)
        values *= DEVIATION
        yield _to_bfloat16(values)


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
    """The nearest bf16 of finite float32 values, ties to even, as bits."""
    bits = values.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")


def hf_config(shape: Shape) -> dict[str, Any]:
    """What config.json says of it."""
    demo = json.loads((DEMO / "config.json").read_text(encoding="utf-8"))
    experts = {} if shape.experts is None else asdict(shape.experts) | {"decoder_sparse_step": 1, "mlp_only_layers": []}
    optional = {"head_dim": shape.head_dim, **experts}
    return {
        "architectures": [CLASS_NAMES[shape.model_type]],
        "model_type": shape.model_type,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "intermediate_size": shape.intermediate_size,
        "vocab_size": shape.vocab_size,
        "tie_word_embeddings": shape.tie_word_embeddings,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "initializer_range": DEVIATION,
        "attention_dropout": 0.0,
        "use_cache": True,
        "use_sliding_window": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": demo["bos_token_id"],
        "eos_token_id": demo["eos_token_id"],
        **{name: value for name, value in optional.items() if value is not None},
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
