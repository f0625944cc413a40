"""Tokenizers that are the same, and those that differ in a token."""

import json
import shutil
from pathlib import Path

import pytest

from engine.errors import InvalidConfig
from engine.text.vocabulary import check_same_tokens, check_tokenizer
from tests.engine.support.workloads import DEMO


@pytest.fixture
def other(tmp_path):
    shutil.copyfile(Path(DEMO) / "tokenizer.json", tmp_path / "tokenizer.json")
    return tmp_path


def change(folder, do):
    path = folder / "tokenizer.json"
    told = json.loads(path.read_text(encoding="utf-8"))
    do(told)
    path.write_text(json.dumps(told), encoding="utf-8")


def test_other_bytes_may_have_the_same_tokens(other):
    assert check_same_tokens(DEMO, str(other)) == 768
    change(other, lambda told: told.update(normalizer=None))
    assert check_same_tokens(DEMO, str(other)) == 768


def test_two_tokens_exchanged(other):
    def exchange(told):
        vocabulary = told["model"]["vocab"]
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]

    change(other, exchange)
    with pytest.raises(InvalidConfig, match=r"token '[ab]' is \d+ in .*demo and \d+ in"):
        check_same_tokens(DEMO, str(other))


def test_a_token_more(other):
    one = {"id": 768, "content": "<new>", "special": True}
    change(other, lambda told: told["added_tokens"].append(told["added_tokens"][0] | one))
    with pytest.raises(InvalidConfig, match=r"demo has 768 tokens and that of .* has 769"):
        check_same_tokens(DEMO, str(other))


@pytest.mark.parametrize("content", [None, "{"])
def test_a_tokenizer_that_cannot_be_read(other, content):
    path = other / "tokenizer.json"
    path.unlink()
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidConfig, match=f"{path} cannot be read"):
        check_same_tokens(DEMO, str(other))


def test_tokens_that_only_the_settings_list_count(other):
    (other / "added_tokens.json").write_text('{"<|mark|>": 768}', encoding="utf-8")
    check_tokenizer(other)
    with pytest.raises(InvalidConfig, match=r"demo has 768 tokens and that of .* has 769"):
        check_same_tokens(DEMO, str(other))
    (other / "added_tokens.json").write_text('{"<|mark|>": 5}', encoding="utf-8")
    with pytest.raises(InvalidConfig, match=r"added_tokens\.json says that token '<\|mark\|>' has id 5"):
        check_tokenizer(other)


def test_a_folder_that_cannot_be_looked_at() -> None:
    with pytest.raises(InvalidConfig, match=r"tokenizer\.json cannot be read: File name too long"):
        check_tokenizer(Path("m" * 300))
