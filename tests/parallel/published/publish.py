"""A checkpoint in a published format, and transformers' model with the numbers that its codes stand
for.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from parallel.spec.published.scheme import LINEARS
from tests.parallel.published.packers import Format, is_ignored
from tests.parallel.spec.saved import VOCAB, Saved, save

NUM_LEAVES = 4
WEIGHTS = "model.safetensors"


def make_plain(folder: Path, num_layers: int = 2, kind: Literal["Qwen2", "Qwen3"] = "Qwen2") -> Saved:
    """With groups of 128 that straddle leaves of 64 inputs, and blocks of 128 outputs that straddle
    ranks.
    """
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCAB,
        hidden_size=256,
        intermediate_size=384,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        initializer_range=0.08,
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):  # transformers makes them of ones
            torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    return save(model, folder, "1GB")


def publish(plain: Saved, form: Format, folder: Path) -> Saved:
    """The checkpoint quantized, and transformers' model with the numbers that its codes stand
    for.
    """
    stored, meant = pack(load_file(Path(plain.folder) / WEIGHTS), form)
    model = type(plain.model)(plain.model.config).eval()
    model.load_state_dict(plain.model.state_dict() | meant)
    if form.rounds_inputs:
        round_inputs(model, [name.removesuffix(".weight") for name in meant], form.input_scale)
    config = write(folder, stored, plain.hf_config, form)
    return Saved(str(folder), config, model)


def pack(tensors: Mapping[str, Tensor], form: Format) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A checkpoint's tensors in the format; and the numbers that its quantized weights stand for,
    float32.
    """
    stored, meant = {}, {}
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        if name == module or module.rpartition(".")[2] not in LINEARS or is_ignored(form.config, module):
            continue
        parts, meant[name] = form.pack(tensor.float())
        stored |= {f"{module}.{part}": each.contiguous() for part, each in parts.items()}
    return stored | {name: tensor for name, tensor in tensors.items() if name not in meant}, meant


def write(folder: Path, stored: dict[str, Tensor], hf_config: dict[str, Any], form: Format) -> dict[str, Any]:
    """Weights and config.json, which is returned."""
    save_file(stored, folder / WEIGHTS)
    config = hf_config | {"quantization_config": form.config}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return config


def round_inputs(model: Any, linears: Iterable[str], input_scale: float | None) -> None:
    """To integers of 8 bits, with this scale or one for each row's part that a leaf has."""
    for name in linears:
        leaves = NUM_LEAVES if name.endswith(("o_proj", "down_proj")) else 1
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, given, leaves=leaves: rounded(given[0], leaves, input_scale)
        )


def rounded(x: Tensor, num_leaves: int, input_scale: float | None) -> Tensor:
    leaves = x.unflatten(-1, (num_leaves, -1))
    scale = input_scale or leaves.abs().amax(-1, keepdim=True) / 127
    return ((leaves / scale).round().clamp(-128, 127) * scale).flatten(-2)
