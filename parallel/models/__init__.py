"""The models there are: an architecture's name in config.json -> the class that computes it."""

from typing import Any

import torch

from ops.interface import Ops
from parallel.errors import UnsupportedModel
from parallel.group import Group
from parallel.models.qwen2 import Qwen2Config, Qwen2ForCausalLM
from parallel.pipeline import Stage

MODELS = {"Qwen2ForCausalLM": (Qwen2Config, Qwen2ForCausalLM)}


def build(
    hf_config: dict[str, Any], *, ops: Ops, tp: Group, stage: Stage, dtype: torch.dtype, device: torch.device
) -> Qwen2ForCausalLM:
    """This rank's shard of the model that config.json describes, without weights yet.

    Raises UnsupportedModel, or InvalidSharding if it cannot be cut into `tp.size` ranks and `stage.size` stages.
    """
    config_class, model_class = _classes(hf_config)
    config = config_class.from_hf(hf_config)
    config.check_sharding(tp.size, stage.size)
    return model_class(config, ops=ops, tp=tp, stage=stage, dtype=dtype, device=device)


def check_sharding(hf_config: dict[str, Any], tp_size: int, pp_size: int) -> None:
    """Raise what `build` would, before anything is started."""
    config_class, _ = _classes(hf_config)
    config_class.from_hf(hf_config).check_sharding(tp_size, pp_size)


def _classes(hf_config: dict[str, Any]) -> tuple[type[Qwen2Config], type[Qwen2ForCausalLM]]:
    for name in hf_config.get("architectures") or []:
        if name in MODELS:
            return MODELS[name]
    named = ", ".join(hf_config.get("architectures") or ["none"])
    raise UnsupportedModel(f"config.json names the architecture {named}; there is {', '.join(MODELS)}")
