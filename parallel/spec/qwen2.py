"""Qwen2: grouped-query attention with biases on queries, keys and values, gated MLP, RMS norm,
rotary positions.
"""

from typing import Any

from parallel.spec.decoder import DecoderConfig
from parallel.spec.read import read_decoder


def read(hf_config: dict[str, Any]) -> DecoderConfig:
    """Raises UnsupportedModel."""
    return read_decoder(hf_config, has_qkv_bias=hf_config.get("attention_bias", True), has_qk_norm=False)
