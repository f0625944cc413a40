"""Checkpoints without a head."""

import json
from pathlib import Path

import pytest

from engine.checkpoint.headless import INDEX, with_a_head


@pytest.mark.parametrize(
    ("names", "is_tied"),
    [
        (["embed_tokens.weight", "norm.weight"], True),
        (["embed_tokens.weight", "norm.weight", "lm_head.weight"], False),
        (["model.embed_tokens.weight"], False),  # it should have one, and is refused for it
    ],
)
def test_one_that_was_saved_without_its_head_is_tied(tmp_path: Path, names: list[str], is_tied: bool) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, "a.safetensors")}), encoding="utf-8")
    found = with_a_head({"tie_word_embeddings": False, "vocab_size": 9}, tmp_path)
    assert found == {"tie_word_embeddings": is_tied, "vocab_size": 9}


def test_without_an_index_config_json_is_believed(tmp_path: Path) -> None:
    assert with_a_head({"tie_word_embeddings": False}, tmp_path) == {"tie_word_embeddings": False}
