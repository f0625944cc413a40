"""Tokens that only tokenizer_config.json lists, as in transformers."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Encoder
from transformers import AutoTokenizer

from engine.errors import InvalidConfig
from engine.text.tokenizer import Tokenizer
from tests.engine.support.workloads import DEMO


def with_settings(folder: Path, **changes: object) -> str:
    settings = json.loads((Path(DEMO) / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | changes))
    (folder / "tokenizer.json").write_bytes((Path(DEMO) / "tokenizer.json").read_bytes())
    return str(folder)


def test_tokens_that_only_the_settings_list(tmp_path: Path) -> None:
    size = Encoder.from_file(f"{DEMO}/tokenizer.json").get_vocab_size()
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    added = {str(size): {"content": "<|mark|>", "special": True, **flags}}
    folder = with_settings(tmp_path, added_tokens_decoder=added)
    ours, text = Tokenizer(folder), "Hello<|mark|>, world"
    assert ours.encode(text) == AutoTokenizer.from_pretrained(folder).encode(text)
    assert size in ours.encode(text) and size in ours.special_ids


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"added_tokens_decoder": {"5": {"content": "<|mark|>"}}},
            r"'<\|mark\|>' has id 5, and by tokenizer.json it has",
        ),
        (
            {"auto_map": {"AutoTokenizer": ["tokenization_own.Own", None]}},
            "code that the checkpoint brings, which",
        ),
        ({"added_tokens_decoder": {"five": {}}}, "added_tokens_decoder is no object of tokens by id"),
        ({"added_tokens_decoder": ["<|mark|>"]}, "added_tokens_decoder is no object of tokens by id"),
        ({"add_prefix_space": True}, "add_prefix_space=true is not supported; false is"),
        ({"split_special_tokens": True}, "split_special_tokens=true is not supported; false is"),
    ],
)
def test_settings_that_contradict_the_tokenizer(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        Tokenizer(with_settings(tmp_path, **changes))
