"""Qwen2-MoE: Qwen2's attention, and experts instead of the MLP: each row goes to a few and to a
shared one.
"""

from typing import Any

from parallel.spec.decoder import DecoderConfig
from parallel.spec.read import read_decoder, read_moe


def read(hf_config: dict[str, Any]) -> DecoderConfig:
    """Raises UnsupportedModel."""
    moe = read_moe(hf_config, num_experts="num_experts", has_shared=True)
    return read_decoder(hf_config, has_qkv_bias=hf_config.get("qkv_bias", True), has_qk_norm=False, moe=moe)
