"""Text comes out as it is decided, whole characters only, and adds up to what a decoder makes of
all tokens at once.
"""

import random

import pytest
from transformers import AutoTokenizer

from engine.text.detokenizer import Detokenizer, TextState
from tests.engine.support.workloads import DEMO, TOKENIZER

TEXTS = ["Hello, world!", "こんにちは, 🐟🐟!", "naïve café: 12 + 30 = 42", "\n\t  spaces  ", "👩‍👩‍👧‍👦", "Ωmega"]


@pytest.fixture(scope="module")
def detokenizer():
    return Detokenizer(TOKENIZER.token_bytes, TOKENIZER.special_ids, len(TOKENIZER.token_bytes) + 100)


@pytest.fixture(scope="module")
def theirs():
    return AutoTokenizer.from_pretrained(DEMO)


def streamed(detokenizer, token_ids, *, skip_special_tokens=True):
    state, pieces = TextState(), []
    for token_id in token_ids:
        pieces.append(detokenizer.push(state, token_id, skip_special_tokens=skip_special_tokens))
    return [*pieces, detokenizer.flush(state)]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_add_up_to_the_text(detokenizer, text):
    pieces = streamed(detokenizer, TOKENIZER.encode(text))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("skip", [True, False])
def test_random_tokens_add_up_to_what_transformers_decodes(detokenizer, theirs, skip):
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(len(TOKENIZER.token_bytes)) for _ in range(rng.randint(1, 30))]
        expected = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        assert "".join(streamed(detokenizer, ids, skip_special_tokens=skip)) == expected
        assert TOKENIZER.decode(ids, skip_special_tokens=skip) == expected


def test_a_character_cut_off_at_the_end_is_replaced(detokenizer):
    token_ids = TOKENIZER.encode("🐟")[:-1]
    pieces = streamed(detokenizer, token_ids)
    assert pieces[-1] == "\ufffd" and not any(pieces[:-1])


def test_only_tokens_of_whole_characters_have_a_text_of_their_own(detokenizer):
    texts, parts = detokenizer.whole_texts, TOKENIZER.encode("🐟")
    assert [texts[token_id] for token_id in TOKENIZER.encode("Hello")] == streamed(
        detokenizer, TOKENIZER.encode("Hello")
    )[:-1]
    assert len(parts) > 1 and [texts[token_id] for token_id in parts] == [None] * len(parts)
    assert all(texts[token_id] is None for token_id in TOKENIZER.special_ids)


def test_ids_beyond_the_tokenizer_stand_for_nothing(detokenizer):
    assert streamed(detokenizer, [len(TOKENIZER.token_bytes) + 50]) == ["", ""]
