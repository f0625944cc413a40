"""What was named as a model and is none: what it is, and what to do about it."""

import os
from pathlib import Path

import pytest

from engine.checkpoint.model_folder import check_model_folder, resolve_model
from engine.errors import InvalidConfig


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.safetensors", b"", "name its folder, "),
        ("config.json", b"{}", "name its folder, "),
        ("model.bin", b"GGUF\3", "is a GGUF file"),
        ("notes.txt", b"hello", "a model is a folder in Hugging Face layout"),
    ],
)
def test_files_are_refused_by_what_they_are(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidConfig, match=said):
        check_model_folder(str(tmp_path / name))


def test_a_folder_of_another_format_is_refused_by_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "qwen2.5-0.5b-instruct-q4_k_m.gguf").write_bytes(b"GGUF\3")
    with pytest.raises(InvalidConfig, match=r"has no config.json, .*; qwen2.5-0.5b-instruct-q4_k_m.gguf is a GGUF"):
        check_model_folder(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    check_model_folder(str(tmp_path))


def test_a_folder_that_hides_a_name_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen").mkdir()
    with pytest.raises(InvalidConfig, match=r"name it hf://Qwen/Qwen3-0\.6B, since there is a folder Qwen here"):
        check_model_folder("Qwen/Qwen3-0.6B")
    check_model_folder(str(tmp_path))


def test_a_folder_is_found_by_processes_in_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    assert resolve_model("model") == str(tmp_path / "model")
    assert resolve_model("elsewhere") == "elsewhere"
    assert resolve_model((tmp_path / "model").as_uri()) == str(tmp_path / "model")
    assert resolve_model("s3://bucket/model") == "s3://bucket/model"


def test_a_name_that_cannot_be_looked_up() -> None:
    name = "m" * 300
    assert resolve_model(name) == name
    with pytest.raises(InvalidConfig, match=f"{name} cannot be read: File name too long"):
        check_model_folder(name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read whatever it likes")
def test_a_folder_that_may_not_be_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o000)
    try:
        with pytest.raises(InvalidConfig, match=f"{tmp_path} cannot be read: Permission denied"):
            check_model_folder(str(tmp_path))
    finally:
        tmp_path.chmod(0o755)
