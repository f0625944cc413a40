"""The demo checkpoint with other numbers, as a step of a trainer leaves it."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.corruptions import WEIGHTS, copy_demo


def save_perturbed(folder: Path, seed: int = 0) -> dict[str, Tensor]:
    """The tensors that the folder holds then."""
    copy_demo(folder)
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: (tensor.float() * (1 + 0.1 * torch.randn(tensor.shape, generator=generator))).to(tensor.dtype)
        for name, tensor in load_file(folder / WEIGHTS).items()
    }
    save_file(tensors, folder / WEIGHTS)
    return tensors
