"""Describes a model from config.json alone: its layers, its tensors, how it can be sharded. Needs
no torch.

Workers build their layers from it (`parallel.decoder`); the planner computes weights and cache from
it before anything starts.
"""

from collections.abc import Callable
from typing import Any

from parallel.errors import UnsupportedModel
from parallel.spec import qwen2, qwen2_moe, qwen3, qwen3_moe
from parallel.spec.decoder import DecoderConfig

# An architecture's name in config.json -> the function that reads config.json.
MODELS: dict[str, Callable[[dict[str, Any]], DecoderConfig]] = {
    "Qwen2ForCausalLM": qwen2.read,
    "Qwen2MoeForCausalLM": qwen2_moe.read,
    "Qwen3ForCausalLM": qwen3.read,
    "Qwen3MoeForCausalLM": qwen3_moe.read,
}

# Beginnings of the names of architectures with state that is no cache of keys: docs/hybrid.md.
HYBRID = ("Qwen3Next", "Qwen3_5")


def read(hf_config: dict[str, Any]) -> DecoderConfig:
    """config.json, as a dictionary, of any of these architectures; raises UnsupportedModel."""
    names = hf_config.get("architectures") or []
    for name in names:
        if name in MODELS:
            return MODELS[name](hf_config)
        if name.startswith(HYBRID):
            raise UnsupportedModel(
                f"config.json names the architecture {name}: its gated delta net layers are not computed; there is "
                f"{', '.join(MODELS)}"
            )
    raise UnsupportedModel(
        f"config.json names the architecture {', '.join(names) or 'none'}; there is {', '.join(MODELS)}"
    )
