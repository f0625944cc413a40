"""AutoAWQ's packing alone: its search for scales wants a GPU, and an older transformers."""

import json
from pathlib import Path

import torch
from awq.modules.linear.gemm import WQLinear_GEMM
from awq.utils.packing_utils import dequantize_gemm
from safetensors.torch import save_file
from torch import nn

from tests.parallel.published.own.made import load, save_logits
from tests.parallel.published.packers import regular, to_codes
from tests.parallel.published.publish import WEIGHTS

SIZE = 128
CONFIG = {"quant_method": "awq", "bits": 4, "group_size": SIZE, "zero_point": True, "version": "gemm"}


def make(plain: str, folder: Path) -> None:
    folder.mkdir()
    model, meant = load(plain, dtype=torch.float16), load(plain, dtype=torch.float16).float()
    stored = model.state_dict()
    for name, linear in model.model.named_modules():
        if not isinstance(linear, nn.Linear):
            continue
        groups = regular(linear.in_features, SIZE)
        _, zeros, scales = to_codes(linear.weight.float(), groups, 4, is_symmetric=False)
        packed = WQLinear_GEMM.from_linear(linear, 4, SIZE, scales=scales.T.contiguous(), zeros=zeros.T.contiguous())
        del stored[f"model.{name}.weight"]
        stored |= {f"model.{name}.{part}": tensor for part, tensor in packed.state_dict().items()}
        weight = dequantize_gemm(packed.qweight, packed.qzeros, packed.scales.float(), 4, SIZE)
        meant.model.get_submodule(name).weight.data.copy_(weight.T)
    stored.pop("lm_head.weight")  # the embeddings
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / WEIGHTS)
    hf_config = json.loads((Path(plain) / "config.json").read_text(encoding="utf-8"))
    config = hf_config | {"quantization_config": CONFIG, "dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_logits(meant, folder)
