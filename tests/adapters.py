"""Adapters in PEFT's layout, made for tests, and models with an adapter merged into them."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.checkpoint.model_config import ModelConfig
from engine.request import Adapter
from parallel.spec import read
from parallel.spec.adapter import CONFIG_FILE, WEIGHTS_FILE, digest
from parallel.spec.decoder import Shapes
from tests.engine.support.workloads import DEMO

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def demo_shapes() -> Shapes:
    """Of the demo checkpoint."""
    return read(ModelConfig.load(DEMO).hf_config).shapes()


def save_adapter(
    folder: Path,
    shapes: Shapes,
    *,
    rank: int = 4,
    alpha: float = 8,
    targets: Iterable[str] = ALL_LINEAR,
    seed: int = 0,
    size: float = 2.0,
    dtype: torch.dtype = torch.float32,
    changes: Mapping[str, object] | None = None,
) -> Adapter:
    """Of the model whose tensors have these shapes; `changes` are keys of adapter_config.json.
    `size`: of what it adds to an output of a row whose inputs are about 1. The default changes the
    demo model's greedy answers.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        module = name.removesuffix(".weight")
        if len(shape) == 2 and module.rpartition(".")[2] in targets:
            down = torch.randn(rank, shape[1], generator=generator) / shape[1] ** 0.5
            up = torch.randn(shape[0], rank, generator=generator) * size / alpha
            tensors[f"base_model.model.{module}.lora_A.weight"] = down.to(dtype)
            tensors[f"base_model.model.{module}.lora_B.weight"] = up.to(dtype)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": list(targets), "bias": "none"}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_FILE).write_text(json.dumps(config | dict(changes or {})))
    save_file(tensors, folder / WEIGHTS_FILE)
    return describe(folder, rank)


def describe(folder: Path, rank: int) -> Adapter:
    found = digest((folder / CONFIG_FILE).read_bytes(), (folder / WEIGHTS_FILE).read_bytes())
    return Adapter(folder.name, str(folder), found, rank)


def merged(weights: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """W + scale * B A, by the formula of peft's documentation; float32."""
    config = json.loads((folder / CONFIG_FILE).read_text())
    rank = config["r"]
    scale = config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)
    factors = load_file(folder / WEIGHTS_FILE)
    result = dict(weights)
    for name, down in factors.items():
        if name.endswith(".lora_A.weight"):
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            up = factors[name.replace("lora_A", "lora_B")]
            weight = weights[f"{module}.weight"]
            result[f"{module}.weight"] = (weight.double() + scale * (up.double() @ down.double())).float()
    return result
