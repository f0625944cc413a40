"""Which checkpoints the formats' own packers make, and how each is saved with the logits that
transformers gives for it.
"""

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from tests.parallel.spec.saved import prompts

Fields = dict[str, Any]

LOGITS = "logits.safetensors"
UNQUANTIZED = "model.layers.0.self_attn.o_proj"
INPUT_SCALE = 2**-5  # which bfloat16 has
_INT = {"type": "int", "symmetric": True, "dynamic": False}
_FLOAT = {"type": "float", "symmetric": True, "dynamic": False, "num_bits": 8}
_FOUR = _INT | {"num_bits": 4, "strategy": "group", "group_size": 128}
_EIGHT = _INT | {"num_bits": 8, "strategy": "channel"}
_EACH_TOKEN = {"dynamic": True, "strategy": "token"}
# By compressed-tensors: how it quantizes weights, and inputs.
COMPRESSED: dict[str, tuple[Fields, Fields | None]] = {
    "W4A16": (_FOUR, None),
    "W4A16 zeros": (_FOUR | {"symmetric": False, "group_size": 32}, None),
    "W4A16 act-order": (_FOUR | {"actorder": "weight"}, None),
    "W8A16": (_EIGHT, None),
    "W8A16 groups": (_EIGHT | {"strategy": "group", "group_size": 128}, None),
    "W8A8": (_EIGHT, _EIGHT | _EACH_TOKEN),
    "W8A8 tensor": (_EIGHT | {"strategy": "tensor"}, _EIGHT | _EACH_TOKEN),
    "W8A8 static": (_EIGHT, _EIGHT | {"strategy": "tensor"}),
    "FP8 channel": (_FLOAT | {"strategy": "channel"}, _FLOAT | _EACH_TOKEN),
    "FP8 tensor": (_FLOAT | {"strategy": "tensor"}, _FLOAT | {"strategy": "tensor"}),
    "FP8 blocks": (
        _FLOAT | {"strategy": "block", "block_structure": [128, 128]},
        _FLOAT | {"dynamic": True, "strategy": "group", "group_size": 128},
    ),
}
# By GPTQModel, whose GPTQ packer is AutoGPTQ's.
GPTQMODEL: dict[str, Fields] = {
    "GPTQ 4": {"bits": 4, "group_size": 128},
    "GPTQ 4 zeros act-order": {"bits": 4, "group_size": 128, "sym": False, "desc_act": True},
    "GPTQ 8 v2": {"bits": 8, "group_size": 64, "sym": False, "format": "gptq_v2"},
    "AWQ, GPTQModel's": {"bits": 4, "group_size": 128, "sym": False, "quant_method": "awq", "format": "gemm"},
}
AUTOAWQ = "AWQ"
# By AutoRound: the format that is asked for, and whether it is symmetric.
AUTOROUND = {
    "AutoRound, GPTQ": ("auto_gptq", True),
    "AutoRound": ("auto_round", True),
    "AutoRound zeros": ("auto_round", False),
}
NAMES = (*COMPRESSED, *GPTQMODEL, *AUTOROUND, AUTOAWQ)


def load(folder: str | Path, **options: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()


def save_logits(model: Any, folder: Path) -> None:
    """[tokens, V] float32 of each of `prompts()`, by its number."""
    logits = {str(number): model(torch.tensor([prompt])).logits[0] for number, prompt in enumerate(prompts())}
    save_file(logits, folder / LOGITS)
