"""Which files of a model are fetched."""

import json

import pytest

from cluster.download.choice import files_of_model, small_files, weight_files
from cluster.download.store import RemoteFile
from engine.errors import InvalidConfig


def remote(*names: str) -> tuple[RemoteFile, ...]:
    return tuple(RemoteFile(name, 1, "etag", None) for name in names)


def names(files: tuple[RemoteFile, ...]) -> list[str]:
    return [file.name for file in files]


def test_small_files_are_data_and_never_code() -> None:
    wanted = ["config.json", "tokenizer.json", "additional_chat_templates/rag.jinja", "1_Pooling/config.json"]
    others = ["modeling_qwen.py", "pytorch_model.bin", "model.safetensors", "README.md", "onnx/config.json"]
    assert names(small_files(remote(*wanted, *others), "x")) == wanted


def test_weights_are_one_file_or_those_of_the_index() -> None:
    parts = ("model-1.safetensors", "model-2.safetensors")
    index = json.dumps({"weight_map": {"a": parts[1], "b": parts[0], "c": parts[1]}}).encode()
    assert names(weight_files(remote("other.safetensors", *parts), index, "x")) == list(parts)
    assert names(weight_files(remote("model.safetensors", *parts), index, "x")) == ["model.safetensors"]


def test_files_that_make_a_model_what_it_is() -> None:
    parts = ["model-1.safetensors", "model-2.safetensors"]
    others = ["README.md", "optimizer.pt"]
    assert names(files_of_model(remote("config.json", *others, *parts))) == ["config.json", *parts]
    whole = remote("config.json", "model.safetensors", *others, *parts)
    assert names(files_of_model(whole)) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (None, "x has neither model.safetensors nor .*; a.bin is a pickle, which could run code"),
        (b'{"weight_map": {"a": "gone.safetensors"}}', "names gone.safetensors, which is not there"),
        (b'{"weight_map": ["a"]}', "has no weight_map"),
        (b"{}", "has no weight_map"),
        (b"[]", "has no weight_map"),
        (b"\xff", "has no weight_map"),
    ],
)
def test_what_is_missing_is_named(index: bytes | None, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        weight_files(remote("a.bin"), index, "x")


def test_a_folder_without_config_is_no_model() -> None:
    with pytest.raises(InvalidConfig, match=r"x has no config.json, .* it has a, b"):
        small_files(remote("a", "b"), "x")
    with pytest.raises(InvalidConfig, match="it has nothing"):
        small_files((), "x")


@pytest.mark.parametrize("name", ["additional_chat_templates/../../evil.jinja", "../model.safetensors", "/etc/motd"])
def test_a_file_outside_of_the_folder_is_none_of_the_model(name: str) -> None:
    with pytest.raises(InvalidConfig, match=f"x has {name}, which is no name of a file below it"):
        small_files(remote("config.json", name), "x")
