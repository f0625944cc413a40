"""Qwen3-MoE: Qwen3's attention, and experts instead of the MLP."""

from typing import Any

from parallel.spec.decoder import DecoderConfig
from parallel.spec.qwen3 import SUPPORTED
from parallel.spec.read import read_decoder, read_moe


def read(hf_config: dict[str, Any]) -> DecoderConfig:
    """Raises UnsupportedModel. The number of experts is num_experts, or num_local_experts from
    transformers 5 on.
    """
    num_experts = "num_local_experts" if "num_local_experts" in hf_config else "num_experts"
    moe = read_moe(hf_config, num_experts=num_experts, has_shared=False)
    return read_decoder(hf_config, has_qkv_bias=False, has_qk_norm=True, supported=SUPPORTED, moe=moe)
