"""The demo's weights in several files, as larger models are published."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.cluster.download.conftest import DEMO

INDEX = "model.safetensors.index.json"
EMBEDDING, FIRST, MIDDLE, LAST, NORM, UNUSED = (f"model-0000{number}-of-00006.safetensors" for number in range(1, 7))
# Of two stages of two layers each: the embedding is tied to the head, the middle file has a part of
# layers 1 and 2, and the last one what nobody reads.
OF_STAGE = {0: {EMBEDDING, FIRST, MIDDLE, UNUSED}, 1: {EMBEDDING, MIDDLE, LAST, NORM}}
ALL = OF_STAGE[0] | OF_STAGE[1]


def save_in_parts(folder: Path) -> dict[str, bytes]:
    """A copy of the demo; what its files hold, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = load_file(DEMO / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(32)
    weight_map = {name: _file_of(name) for name in tensors}
    for file in ALL:
        save_file({name: tensor for name, tensor in tensors.items() if weight_map[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((DEMO / name).read_bytes())
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _file_of(name: str) -> str:
    if name.endswith("inv_freq"):
        return UNUSED
    if name.startswith("model.layers."):
        layer, part = name.split(".")[2:4]
        is_middle = layer == "1" or (layer == "2" and part == "self_attn")
        return MIDDLE if is_middle else FIRST if layer == "0" else LAST
    return NORM if name == "model.norm.weight" else EMBEDDING
