"""The whole of GPTQModel's quantization, on a few random texts."""

import os
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.parallel.published.own.made import GPTQMODEL, load, save_logits
from tests.parallel.spec.saved import VOCAB

os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # with fewer it does not start
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig


def make(plain: str, name: str, folder: Path) -> None:
    model = GPTQModel.load(plain, QuantizeConfig(**GPTQMODEL[name]), device="cpu", backend=BACKEND.TORCH)
    generator = torch.Generator().manual_seed(5)
    texts = [torch.randint(0, VOCAB, (length,), generator=generator) for length in (64, 100, 80, 120) * 2]
    model.quantize([{"input_ids": text, "attention_mask": torch.ones_like(text)} for text in texts], batch_size=1)
    model.save(str(folder))
    loaded = load(folder, dtype=torch.float32, device_map="cpu")
    for module in loaded.modules():
        if isinstance(getattr(module, "scales", None), Tensor):
            module.scales = nn.Buffer(module.scales.float())  # so that products are not rounded to float16
    save_logits(loaded, folder)
