"""Draft models of the demo checkpoint: folders that a test makes of it."""

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from tests.engine.support.workloads import DEMO


def truncated(folder: Path, num_layers: int = 3, *, vocab_size: int | None = None) -> str:
    """The first layers of the demo model, which guess half as well; its vocabulary padded to
    vocab_size, or cut.
    """
    shutil.copytree(DEMO, folder, ignore=shutil.ignore_patterns("tasks", "*.py", "*.jsonl", "*.safetensors"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"num_hidden_layers": num_layers, "layer_types": config["layer_types"][:num_layers]}
    weights = load_file(Path(DEMO) / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if _layer_of(name) < num_layers}
    if vocab_size is not None:
        embedding = kept["model.embed_tokens.weight"]
        grown = embedding.new_zeros(vocab_size, embedding.shape[1])
        grown[: len(embedding)] = embedding[:vocab_size]
        kept["model.embed_tokens.weight"] = grown
        config["vocab_size"] = vocab_size
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def _layer_of(name: str) -> int:
    """-1 of what is in none."""
    parts = name.split(".")
    return int(parts[2]) if parts[1] == "layers" else -1
