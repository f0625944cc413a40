"""Reads an adapter's tensors from its folder."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from parallel.adapters.adapter import Factors
from parallel.errors import InvalidAdapter
from parallel.spec.adapter import CONFIG_FILE, WEIGHTS_FILE, AdapterConfig, digest, pairs
from parallel.spec.decoder import DecoderConfig


def read_factors(
    folder: str, wanted: str, model: DecoderConfig, dtype: torch.dtype, device: torch.device
) -> dict[str, Factors]:
    """By the names of the model's linears, in its dtype. Raises InvalidAdapter, also if the files'
    digest is not `wanted`: they have changed.
    """
    try:
        config, weights = ((Path(folder) / name).read_bytes() for name in (CONFIG_FILE, WEIGHTS_FILE))
    except OSError as error:
        raise InvalidAdapter(f"{error.filename} cannot be read: {error.strerror}") from None
    if (found := digest(config, weights)) != wanted:
        raise InvalidAdapter(f"{folder} has changed: its digest is {found[:16]}, and {wanted[:16]} is wanted")
    try:
        tensors = load(weights)
    except SafetensorError as error:
        raise InvalidAdapter(f"{folder}/{WEIGHTS_FILE} cannot be read: {error}") from None
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    factors = {}
    for name, pair in pairs(AdapterConfig.parse(config, f"{folder}/{CONFIG_FILE}"), shapes, model).items():
        down, up = (tensors[half].to(device, dtype) for half in (pair.down, pair.up))
        if not (down.isfinite().all() and up.isfinite().all()):
            raise InvalidAdapter(f"{folder}: the adapter of {name} holds NaN or infinity, as {dtype}")
        factors[name] = Factors(down, up, pair.scale)
    return factors
