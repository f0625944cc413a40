"""Checks what is named as a model: if it is not a folder in Hugging Face layout, the error says
what it is and what to do.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.checkpoint.other_formats import told_by
from engine.config import is_hub_name, local_path
from engine.errors import InvalidConfig

_GGUF = b"GGUF"  # the beginning of such a file


def check_model_folder(model: str) -> None:
    """Raises InvalidConfig if `model` is a file, looks like a name of the Hugging Face hub, is a
    folder without config.json that holds something else that is known, or cannot be looked at.
    """
    try:
        _check(model, Path(model))
    except OSError as error:
        raise InvalidConfig(f"{model} cannot be read: {error.strerror}") from None


def resolve_model(model: str) -> str:
    """The path, which may be given as file://, as other processes can find it, from any working
    folder; as it was if it does not exist, or cannot be seen.
    """
    path = Path(local_path(model))
    return str(path.resolve()) if os.path.exists(path) else local_path(model)


def resolve_paths(engine: Mapping[str, Any]) -> dict[str, Any]:
    """An engine's options with all their paths as other processes can find them: those of a cluster
    that ran before have other working folders. Values of wrong types stay as they are.
    """
    found = dict(engine)
    if isinstance(found.get("model"), str):
        found["model"] = resolve_model(found["model"])
    for name in ("tokenizer", "download_dir", "kv_offloading_path"):
        value = found.get(name)
        if isinstance(value, str) and value and "://" not in value and not value.startswith("~"):
            found[name] = os.path.abspath(value)
    draft = found.get("speculative_config")
    if isinstance(draft, Mapping) and isinstance(draft.get("model"), str):
        found["speculative_config"] = {**draft, "model": resolve_model(draft["model"])}
    return found


def _check(model: str, path: Path) -> None:
    if path.is_file():
        raise InvalidConfig(_of_a_file(path))
    if path.is_dir() and not (path / "config.json").exists():
        what = told_by(file.name for file in path.iterdir())
        if what is not None:
            raise InvalidConfig(f"{path} has no config.json, so it is no model in Hugging Face layout; {what}")
    if is_hub_name(model) and not path.exists():
        raise InvalidConfig(
            f"there is no folder {model}; if the model of the Hugging Face hub is meant, name it hf://{model}, since "
            f"there is a folder {path.parent} here"
        )


def _of_a_file(path: Path) -> str:
    if path.suffix == ".safetensors" or path.name == "config.json":
        return f"{path} is a file of a model; name its folder, {path.parent}"
    if _begins_with(path, _GGUF):
        return (
            f"{path} is a GGUF file, which is not served; get the checkpoint it was made of, a folder with "
            "config.json, tokenizer.json and *.safetensors, with `hf download ORGANISATION/MODEL --local-dir FOLDER`"
        )
    return (
        f"{path} is a file; a model is a folder in Hugging Face layout, with config.json, tokenizer.json and "
        "*.safetensors"
    )


def _begins_with(path: Path, magic: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False
