"""Weights that are given as tensors, checked before any rank takes its slices of them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from parallel.errors import InvalidCheckpoint, UnsupportedModel
from parallel.given.tensors import verify
from parallel.spec import read


def check_tensors(config: EngineConfig, tensors: Mapping[str, Any]) -> str:
    """A digest of the numbers, in hexadecimal. Raises InvalidConfig naming the tensor that the
    model does not have, or lacks, or that is of another shape, not finite, or a tied head that
    differs from the embedding.
    """
    model = ModelConfig.load(config.model)
    dtype = getattr(torch, model.torch_dtype if config.dtype == "auto" else config.dtype)
    try:
        return verify(tensors, read(model.hf_config), dtype)
    except (InvalidCheckpoint, UnsupportedModel) as error:
        raise InvalidConfig(str(error)) from None


def copied(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """On the host, where nothing that the caller does to its own changes them."""
    return {name: torch.as_tensor(value).detach().to("cpu", copy=True) for name, value in tensors.items()}
