"""Qwen3: head size independent of the hidden size, RMS norm of each query and key head, no
biases.
"""

from typing import Any

from parallel.spec.decoder import DecoderConfig
from parallel.spec.read import Supported, read_decoder, require_integers

SUPPORTED: Supported = {"attention_bias": (False, None)}  # it would also add one to the output


def read(hf_config: dict[str, Any]) -> DecoderConfig:
    """Raises UnsupportedModel."""
    require_integers(hf_config, ("head_dim",))
    return read_decoder(hf_config, has_qkv_bias=False, has_qk_norm=True, supported=SUPPORTED)
