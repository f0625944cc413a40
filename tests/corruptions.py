"""Copies of the demo checkpoint, each damaged in one way: what a start must refuse, by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

DEMO = Path(__file__).resolve().parents[1] / "configs" / "demo"
WEIGHTS = "model.safetensors"
TENSOR = "model.layers.2.mlp.down_proj.weight"
NORM = "model.norm.weight"
SHARD = "model-00002-of-00002.safetensors"
FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def copy_demo(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for name in (*FILES, WEIGHTS):
        shutil.copyfile(DEMO / name, folder / name)
    return folder


def empty(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"")


def truncated_head(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[100:])


def truncated_inside_the_header(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:1000])


def truncated_tail(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1])


def huge_header(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((1 << 40).to_bytes(8, "little") + (folder / WEIGHTS).read_bytes()[8:])


def bad_json(folder: Path) -> None:
    write(folder, b"{" + b"x" * 63, split(folder)[1])


def lfs_pointer(folder: Path) -> None:
    (folder / WEIGHTS).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 6000000\n")


def wrong_shape(folder: Path) -> None:
    edit(folder, TENSOR, lambda entry: entry | {"shape": entry["shape"][::-1]})


def wrong_dtype(folder: Path) -> None:
    edit(folder, TENSOR, lambda entry: entry | {"dtype": "F16"})


def integer_dtype(folder: Path) -> None:
    edit(folder, TENSOR, lambda entry: entry | {"dtype": "I16"})


def missing_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors[TENSOR]
    save_file(tensors, folder / WEIGHTS)


def extra_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file(tensors | {"model.layers.7.mlp.down_proj.weight": tensors[TENSOR].clone()}, folder / WEIGHTS)


def overlapping_offsets(folder: Path) -> None:
    def overlap(entry: dict[str, Any]) -> dict[str, Any]:
        return entry | {"data_offsets": [offset - 2 for offset in entry["data_offsets"]]}

    edit(folder, TENSOR, overlap)


def missing_shard(folder: Path) -> None:
    shard(folder)
    (folder / SHARD).unlink()


def flipped_bit(folder: Path) -> None:
    """The lowest bit of a number's mantissa."""
    change_tensor(folder, lambda data: bytes([data[0] ^ 1]) + data[1:])


def nan_block(folder: Path) -> None:
    change_tensor(folder, lambda data: data[:512] + b"\xc0\x7f" * 64 + data[640:])


# What a header can tell, by name, with what the refusal must name beside the file.
IN_HEADERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty file": (empty, WEIGHTS),
    "truncated head": (truncated_head, WEIGHTS),
    "truncated inside the header": (truncated_inside_the_header, WEIGHTS),
    "truncated tail": (truncated_tail, NORM),
    "huge header": (huge_header, WEIGHTS),
    "bad JSON header": (bad_json, WEIGHTS),
    "Git LFS pointer": (lfs_pointer, "git lfs pull"),
    "wrong shape": (wrong_shape, TENSOR),
    "wrong dtype": (wrong_dtype, TENSOR),
    "integer dtype": (integer_dtype, TENSOR),
    "missing tensor": (missing_tensor, TENSOR),
    "extra tensor": (extra_tensor, "model.layers.7.mlp.down_proj.weight"),
    "overlapping offsets": (overlapping_offsets, TENSOR),
    "missing shard": (missing_shard, NORM),
}
# What only the weights can tell; the first by a manifest alone.
IN_WEIGHTS: dict[str, Callable[[Path], None]] = {"one flipped bit": flipped_bit, "NaN block": nan_block}


def split(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Header and data."""
    content = (folder / WEIGHTS).read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write(folder: Path, header: bytes, data: bytes) -> None:
    (folder / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header + data)


def edit(folder: Path, name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    header, data = split(folder)
    header[name] = change(header[name])
    write(folder, json.dumps(header).encode(), data)


def change_tensor(folder: Path, change: Callable[[bytes], bytes]) -> None:
    """The header stays as it is, to the byte."""
    header, data = split(folder)
    start, stop = header[TENSOR]["data_offsets"]
    content = (folder / WEIGHTS).read_bytes()
    first = len(content) - len(data)
    changed = change(content[first + start : first + stop])
    assert len(changed) == stop - start
    (folder / WEIGHTS).write_bytes(content[: first + start] + changed + content[first + stop :])


def shard(folder: Path) -> None:
    """Two files and an index; the second one holds the final norm alone."""
    tensors = load_file(folder / WEIGHTS)
    files = {SHARD: {NORM: tensors.pop(NORM)}, "model-00001-of-00002.safetensors": tensors}
    for name, part in files.items():
        save_file(part, folder / name)
    weight_map = {tensor: name for name, part in files.items() for tensor in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / WEIGHTS).unlink()
