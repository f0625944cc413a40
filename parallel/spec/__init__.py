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
    return MODELS[architecture(hf_config)](hf_config)


def architecture(hf_config: dict[str, Any]) -> str:
    """The one of MODELS that config.json names. Raises UnsupportedModel if it names none, or code
    that the checkpoint brings.
    """
    found = hf_config.get("architectures") or []
    if not isinstance(found, list):
        raise UnsupportedModel(f"config.json: architectures={found!r} is no list of names")
    names = [str(name) for name in found]
    known = next((name for name in names if name in MODELS), None)
    hybrid = next((name for name in names if name.startswith(HYBRID)), None)
    code = hf_config.get("auto_map")
    if known is not None and code:
        raise UnsupportedModel(
            f"config.json: auto_map={code} names code that the checkpoint brings, which is never run; a copy without "
            f"this field is computed as {known}, if that is what it is"
        )
    if known is not None:
        return known
    if hybrid is not None:
        why = f" {hybrid}: its gated delta net layers, which overwrite a state with every token, are not computed"
    else:
        why = f" {', '.join(names) or 'none'}" + (
            ", of code that it brings (auto_map), which is never run" if code else ""
        )
    raise UnsupportedModel(f"config.json names the architecture{why}; there is {', '.join(MODELS)}")
