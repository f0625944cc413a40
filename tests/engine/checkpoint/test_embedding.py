"""How a folder says that embeddings are made."""

import json
from pathlib import Path

import pytest

from engine.checkpoint.embedding import embedding_of
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.pooling import Embedding

QWEN = ("Transformer", "Pooling", "Normalize")  # as Qwen3-Embedding has them


def folder(path: Path, modules: tuple[str, ...], **pooling: object) -> Path:
    entries = [
        {"idx": index, "path": f"{index}_{name}", "type": f"sentence_transformers.models.{name}"}
        for index, name in enumerate(modules)
    ]
    (path / "modules.json").write_text(json.dumps(entries), encoding="utf-8")
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    return path


def told(path: Path, **options: object) -> Embedding:
    return embedding_of(EngineConfig.create(model=str(path), **options))


def test_a_generative_model_has_the_last_token_normalized(tmp_path: Path) -> None:
    assert told(tmp_path) == Embedding("last", is_normalized=True)


def test_qwen3_embedding(tmp_path: Path) -> None:
    folder(tmp_path, QWEN, word_embedding_dimension=64, pooling_mode_mean_tokens=False, pooling_mode_lasttoken=True)
    assert told(tmp_path) == Embedding("last", is_normalized=True, is_all=True)


@pytest.mark.parametrize("settings", [{"pooling_mode_mean_tokens": True}, {"pooling_mode": "mean"}])
def test_the_mean_not_normalized(tmp_path: Path, settings: dict[str, object]) -> None:
    folder(tmp_path, QWEN[:2], **settings)
    assert told(tmp_path) == Embedding("mean", is_normalized=False, is_all=True)


def test_options_win(tmp_path: Path) -> None:
    folder(tmp_path, QWEN, pooling_mode_lasttoken=True)
    found = told(tmp_path, pooling_type="mean", pooling_normalize=False)
    assert found == Embedding("mean", is_normalized=False, is_all=True)


@pytest.mark.parametrize(
    ("modules", "settings", "complaint"),
    [
        ((*QWEN, "Dense"), {"pooling_mode_lasttoken": True}, "modules.json asks for Dense"),
        (("Transformer",), {}, "modules.json names no Pooling"),
        (QWEN, {"pooling_mode_cls_token": True}, "asks for pooling_mode_cls_token"),
        (QWEN, {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "mean_tokens and pooling_mode_max"),
        (QWEN, {}, "asks for no pooling"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    tmp_path: Path, modules: tuple[str, ...], settings: dict[str, object], complaint: str
) -> None:
    folder(tmp_path, modules, **settings)
    with pytest.raises(InvalidConfig, match=complaint):
        told(tmp_path)
    assert told(tmp_path, pooling_type="last").type == "last"


def test_files_that_are_no_such_json(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InvalidConfig, match=r"modules\.json holds dict, not a list"):
        told(tmp_path)
