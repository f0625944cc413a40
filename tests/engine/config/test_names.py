"""What is a name, and what is a folder."""

from pathlib import Path

import pytest

from engine.config import EngineConfig, local_path, remote_name


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", "hf://Qwen/Qwen2.5-0.5B-Instruct"),
        ("hf://Qwen/Qwen3-0.6B", "hf://Qwen/Qwen3-0.6B"),
        ("s3://bucket/models/qwen/", "s3://bucket/models/qwen"),
        ("gs://bucket/qwen", "gs://bucket/qwen"),
        ("/Qwen/Qwen3-0.6B", None),
        ("./Qwen/Qwen3-0.6B", None),
        ("Qwen", None),
        ("a/b/c", None),
        ("here/model", None),
        ("file:///models/qwen", None),
    ],
)
def test_names(model: str, name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert remote_name(model) == name


def test_clients_use_the_name_as_it_was_given(tmp_path: Path) -> None:
    def served(model: str) -> str:
        return EngineConfig.create(model=model).model_name

    assert served("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
    assert served("s3://bucket/models/qwen") == "s3://bucket/models/qwen"
    assert served(str(tmp_path)) == tmp_path.name


def test_a_file_uri_is_a_path() -> None:
    assert (local_path("file:///a%20b/c"), local_path("/a%20b")) == ("/a b/c", "/a%20b")
