"""The tokenizer encodes and renders conversations as transformers does, and refuses what it
cannot.
"""

import json
import threading
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Encoder
from transformers import AutoTokenizer

from engine.errors import InvalidConfig, InvalidRequest
from engine.request import ChatPrompt
from engine.text.tokenizer import Tokenizer
from tests.engine.support.workloads import DEMO, TOKENIZER

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
    assert TOKENIZER.encode_chat(ChatPrompt(messages)) == expected


def test_content_of_special_tokens_alone_is_refused():
    with pytest.raises(InvalidRequest, match=r"messages\[0\].content") as caught:
        TOKENIZER.encode_chat(ChatPrompt([{"role": "user", "content": "<|im_end|> "}]))
    assert caught.value.param == "messages[0].content"


def test_a_checkpoint_without_a_template_says_so(tmp_path):
    settings = json.loads((Path(DEMO) / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "tokenizer.json").write_bytes((Path(DEMO) / "tokenizer.json").read_bytes())
    with pytest.raises(InvalidRequest, match="no chat template"):
        Tokenizer(str(tmp_path)).encode_chat(ChatPrompt(CONVERSATIONS[0]))


def test_a_missing_tokenizer_names_the_file(tmp_path):
    with pytest.raises(InvalidConfig, match=r"tokenizer\.json"):
        Tokenizer(str(tmp_path))


@pytest.mark.parametrize("settings", ["{", "[" * 200_000])
def test_settings_that_are_not_json_name_the_file(tmp_path, settings):
    (tmp_path / "tokenizer.json").write_bytes((Path(DEMO) / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(settings)
    with pytest.raises(InvalidConfig, match=r"tokenizer_config\.json is not JSON"):
        Tokenizer(str(tmp_path))


def test_tokenizing_leaves_other_threads_their_turns():
    """With the interpreter's lock held throughout, this thread would have one turn, or two."""
    text = "the quick brown fox jumps over 13 lazy dogs\n" * 20_000
    thread = threading.Thread(target=TOKENIZER.encode, args=(text,))
    thread.start()
    num_turns = 0
    while thread.is_alive():
        time.sleep(0.001)
        num_turns += 1
    assert num_turns > 20


def test_a_truncation_in_tokenizer_json_does_not_cut_prompts(tmp_path):
    encoder = Encoder.from_file(str(Path(DEMO) / "tokenizer.json"))
    encoder.enable_truncation(2)
    encoder.enable_padding(length=2)
    encoder.save(str(tmp_path / "tokenizer.json"))
    text = "What is 2 + 3?"
    assert Tokenizer(str(tmp_path)).encode(text) == TOKENIZER.encode(text)


def test_settings_have_special_tokens_as_texts_and_the_templates(tmp_path, theirs):
    told = TOKENIZER.settings
    assert (told["eos_token"], told["pad_token"]) == (theirs.eos_token, theirs.pad_token)
    assert told["mask_token"] is None and told["chat_template"] == theirs.chat_template
    listed = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    folder = Path(DEMO)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"chat_template": listed, "eos_token": {"content": "<|im_end|>", "lstrip": False}, "own": [1]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    told = Tokenizer(str(tmp_path)).settings
    assert (told["chat_template"], told["eos_token"], told["own"]) == (listed, "<|im_end|>", [1])
