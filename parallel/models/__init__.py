"""The models there are: an architecture's name in config.json -> what reads the rest of it."""

from collections.abc import Callable
from typing import Any

import torch

from ops.interface import Ops
from parallel.errors import UnsupportedModel
from parallel.group import Group
from parallel.models import qwen2, qwen2_moe, qwen3, qwen3_moe
from parallel.models.config import DecoderConfig
from parallel.models.decoder import Decoder
from parallel.pipeline import Stage

MODELS: dict[str, Callable[[dict[str, Any]], DecoderConfig]] = {
    "Qwen2ForCausalLM": qwen2.read,
    "Qwen2MoeForCausalLM": qwen2_moe.read,
    "Qwen3ForCausalLM": qwen3.read,
    "Qwen3MoeForCausalLM": qwen3_moe.read,
}


def build(
    hf_config: dict[str, Any], *, ops: Ops, tp: Group, stage: Stage, dtype: torch.dtype, device: torch.device
) -> Decoder:
    """This rank's shard of the model that config.json describes, without weights yet.

    Raises UnsupportedModel, or InvalidSharding if it cannot be cut into `tp.size` ranks and `stage.size` stages.
    """
    config = read(hf_config)
    config.check_sharding(tp.size, stage.size)
    return Decoder(config, ops=ops, tp=tp, stage=stage, dtype=dtype, device=device)


def check_sharding(hf_config: dict[str, Any], tp_size: int, pp_size: int) -> None:
    """Raise what `build` would, before anything is started."""
    read(hf_config).check_sharding(tp_size, pp_size)


def read(hf_config: dict[str, Any]) -> DecoderConfig:
    """config.json, as a dictionary, of any of these architectures; raises UnsupportedModel."""
    names = hf_config.get("architectures") or []
    for name in names:
        if name in MODELS:
            return MODELS[name](hf_config)
    raise UnsupportedModel(
        f"config.json names the architecture {', '.join(names) or 'none'}; there is {', '.join(MODELS)}"
    )
