"""The tokenizer encodes and renders conversations as transformers does, and refuses what it cannot."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from engine.errors import InputProcessingError, InvalidConfig, InvalidRequest
from engine.tokenizer import Tokenizer
from tests.engine.workloads import DEMO, TOKENIZER

CONVERSATIONS = [
    [{"role": "user", "content": "What is 2 + 3?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi 🐟"}],
    [
        {"role": "user", "content": "Say hello."},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "  Again\n"},
    ],
]


@pytest.fixture(scope="module")
def theirs():
    return AutoTokenizer.from_pretrained(DEMO)


def test_texts_encode_as_in_transformers(theirs):
    for text in ("Hello, world! 12345", "こんにちは", "<|im_start|>user\nhi<|im_end|>", " a  b\n\n", "ÀÉÎõü"):
        assert TOKENIZER.encode(text) == theirs.encode(text)


@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_conversations_encode_as_in_transformers(theirs, messages):
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert TOKENIZER.encode_chat(messages) == expected


def test_content_of_special_tokens_alone_is_refused():
    with pytest.raises(InvalidRequest, match=r"messages\[0\].content") as caught:
        TOKENIZER.encode_chat([{"role": "user", "content": "<|im_end|> "}])
    assert caught.value.param == "messages[0].content"


def test_what_a_template_complains_about_is_the_callers_error(tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((Path(DEMO) / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        Tokenizer(str(tmp_path)).encode_chat(CONVERSATIONS[0])


def test_what_a_template_trips_over_is_its_requests_own_trouble(tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((Path(DEMO) / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0]['content'] / 2 }}")
    with pytest.raises(InputProcessingError, match="the chat template failed: TypeError"):
        Tokenizer(str(tmp_path)).encode_chat(CONVERSATIONS[0])


def test_a_checkpoint_without_a_template_says_so(tmp_path):
    settings = json.loads((Path(DEMO) / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "tokenizer.json").write_bytes((Path(DEMO) / "tokenizer.json").read_bytes())
    with pytest.raises(InvalidRequest, match="no chat template"):
        Tokenizer(str(tmp_path)).encode_chat(CONVERSATIONS[0])


def test_a_missing_tokenizer_names_the_file(tmp_path):
    with pytest.raises(InvalidConfig, match=r"tokenizer\.json"):
        Tokenizer(str(tmp_path))
