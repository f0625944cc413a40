"""A text is refused by its bytes only if its tokens could not fit, whatever the tokenizer does to
bytes.
"""

import json
import sys
import unicodedata
from collections import defaultdict
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Encoder

from engine.errors import InvalidRequest
from engine.request import ChatPrompt
from engine.text.text_limit import NFC_SHRINKS_BY, TextLimit
from engine.text.tokenizer import Tokenizer
from tests.engine.support.workloads import DEMO, TOKENIZER

MAX_TOKENS = 16
LONGEST = max(range(len(TOKENIZER.token_bytes)), key=lambda token_id: len(TOKENIZER.token_bytes[token_id]))
SHRINKING = "\u1fbe\u0308\u0301"  # seven bytes, of which NFC makes two


def test_a_text_of_the_longest_tokens_fits():
    text = TOKENIZER.decode([LONGEST], skip_special_tokens=False) * MAX_TOKENS
    assert TOKENIZER.encode(text, MAX_TOKENS) == [LONGEST] * MAX_TOKENS
    with pytest.raises(InvalidRequest, match=r"16 tokens\. However, .* too long: it has \d+ bytes") as caught:
        TOKENIZER.encode(text + "a", MAX_TOKENS)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")


def test_a_text_of_too_many_short_tokens_is_refused_by_their_number():
    assert len(TOKENIZER.encode("1 2 3 4 5", MAX_TOKENS)) == 9
    with pytest.raises(
        InvalidRequest, match=r"length is 16 tokens\. However, the prompt is too long: it has 17"
    ) as caught:
        TOKENIZER.encode("1" * 17, MAX_TOKENS)
    assert caught.value.code == "context_length_exceeded"


def test_a_conversation_is_refused_by_its_bytes():
    with pytest.raises(InvalidRequest, match=r"prompt is too long: it has \d+ bytes") as caught:
        TOKENIZER.encode_chat(ChatPrompt([{"role": "user", "content": "a" * (8 << 20)}]), 2048)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_a_text_that_normalization_shrinks_is_not_refused_too_early():
    limit = TextLimit(num_tokens=1, bytes_per_token=2)
    assert len(unicodedata.normalize("NFC", SHRINKING).encode()) == 2
    limit.check(SHRINKING, "prompt")
    with pytest.raises(InvalidRequest, match="9 bytes"):
        limit.check(SHRINKING + "\u0301", "prompt")


def test_no_character_shrinks_by_more_than_is_allowed_for():
    """Of each part of a character, the longest that is equal to it counts."""
    longest: dict[str, int] = defaultdict(int)
    characters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    parts = {character: unicodedata.normalize("NFD", character) for character in characters}
    for character, those in parts.items():
        if len(those) == 1:
            longest[those] = max(longest[those], len(character.encode()))
    for character, those in parts.items():
        shrunk = len(unicodedata.normalize("NFC", character).encode())
        assert sum(longest[part] for part in those) <= NFC_SHRINKS_BY * shrunk


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "StripAccents"}]}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": False}},
        {"added_tokens": "rstrip"},
    ],
)
def test_a_tokenizer_that_may_drop_bytes_sets_no_limit(tmp_path, change):
    tokenizer = json.loads((Path(DEMO) / "tokenizer.json").read_text())
    if change == {"added_tokens": "rstrip"}:
        tokenizer["added_tokens"][0]["rstrip"] = True
    else:
        tokenizer |= change
    Encoder.from_str(json.dumps(tokenizer)).save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer(str(tmp_path)).text_limit(MAX_TOKENS) is None
    assert TOKENIZER.text_limit(MAX_TOKENS) == TextLimit(MAX_TOKENS, len(TOKENIZER.token_bytes[LONGEST]))
