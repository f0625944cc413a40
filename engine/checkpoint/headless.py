"""Checkpoints that were saved without their head, as Qwen3-Embedding's are."""

from pathlib import Path
from typing import Any

from engine.checkpoint.json_file import read_json

INDEX = "model.safetensors.index.json"
HEAD, BARE_EMBEDDING = "lm_head.weight", "embed_tokens.weight"


def with_a_head(hf_config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """config.json's contents. Of a model whose index has no head they say that it is tied, so that
    there is one, though nothing was trained to use it.

    Raises InvalidConfig.
    """
    if hf_config.get("tie_word_embeddings") or not (folder / INDEX).exists():
        return hf_config
    names = read_json(folder / INDEX).get("weight_map")
    if not isinstance(names, dict) or BARE_EMBEDDING not in names or HEAD in names:
        return hf_config
    return hf_config | {"tie_word_embeddings": True}
