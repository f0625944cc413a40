"""A small checkpoint, in one file or several."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

TENSORS = {"a.weight": torch.arange(24.0).view(6, 4), "b.bias": torch.arange(5.0)}
SHAPES = {name: tuple(tensor.shape) for name, tensor in TENSORS.items()}


def save_index(folder: Path, files: dict[str, dict[str, Tensor]], **moved: str) -> None:
    for file, tensors in files.items():
        save_file(tensors, folder / file)
    names = {name: file for file, tensors in files.items() for name in tensors} | moved
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


SHARDS = {
    "model-1.safetensors": {"a.weight": TENSORS["a.weight"]},
    "model-2.safetensors": {"b.bias": TENSORS["b.bias"]},
}
