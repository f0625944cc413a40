"""A model's vocabulary, in the form that llguidance reads."""

from collections.abc import Sequence

from llguidance import LLTokenizer

from engine.grammars.byte_vocabulary import make
from engine.text.tokenizer import Tokenizer


def of_tokenizer(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """Takes about a second and 30 MB for 150,000 tokens. Special tokens are never part of a text;
    an end token may be sampled where the grammar allows its end.
    """
    known = tokenizer.token_bytes[:vocab_size]
    tokens = known + [b""] * (vocab_size - len(known))  # a model may have more than its tokenizer
    return make(tokens, {*tokenizer.special_ids, *eos_token_ids}, eos_token_ids)
