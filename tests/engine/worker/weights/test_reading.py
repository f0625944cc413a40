"""What a stage's ranks verify of a checkpoint with a manifest, while they read it."""

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import ops
from engine.checkpoint.manifest import MANIFEST_FILE, Manifest
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.worker.ranks import make_ranks
from engine.worker.weights.reading import load_weights
from parallel.decoder import Decoder
from parallel.spec import read
from tests.parallel.spec.saved import Saved, make_and_save

CPU = torch.device("cpu")


def load(saved: Saved, tp_size: int) -> None:
    """On each rank."""
    config = EngineConfig.create(model=saved.folder, tensor_parallel_size=tp_size)
    for rank in range(tp_size):
        ranks = make_ranks(tp_size, 1, rank, CPU)
        model = Decoder(
            read(saved.hf_config), ops=ops.reference, tp=ranks.tp, stage=ranks.stage, dtype=torch.float32, device=CPU
        )
        load_weights(model, config, ranks, None)


@pytest.mark.parametrize("tp_size", [1, 2])
def test_a_changed_number_of_any_tensor_is_found_on_any_number_of_ranks(tmp_path: Path, tp_size: int) -> None:
    """Each expert is read by one rank alone, all else by all."""
    saved, path = make_and_save("qwen3_moe", tmp_path), tmp_path / "model.safetensors"
    tensors = load_file(path)
    digests = {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in tensors.items()}
    manifest = Manifest(files={}, headers={}, tensors=digests)
    (tmp_path / MANIFEST_FILE).write_text(manifest.model_dump_json(), encoding="utf-8")
    load(saved, tp_size)
    experts = [f"model.layers.1.mlp.experts.{index}.down_proj.weight" for index in range(8)]
    for name in [*experts, "model.layers.1.mlp.gate.weight", "model.norm.weight"]:
        changed = tensors[name].clone()
        changed.view(-1)[0] += 1
        save_file(tensors | {name: changed}, path)
        with pytest.raises(InvalidConfig, match=f"tensor {name} has changed since its SHA-256"):
            load(saved, tp_size)
