"""The vocabulary of all bytes, in the form that llguidance reads. What compiles with it imports no
more than it needs: see `trial_child`.
"""

from collections.abc import Sequence

from llguidance import LLTokenizer, TokenizerWrapper


class _Source:
    """What llguidance asks of a tokenizer, by the names that it has for it."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], special_ids: set[int], eos_token_ids: Sequence[int]) -> None:
        self.tokens = tokens
        self.special_token_ids = sorted(special_ids)
        self.eos_token_id = eos_token_ids[0] if eos_token_ids else None

    def __call__(self, text: bytes) -> list[int]:
        """Some tokens of a text: grammars are compiled such that it never matters which."""
        return [0] * len(text)


def of_bytes() -> LLTokenizer:
    """The 256 bytes and an end token."""
    return make([*(bytes([byte]) for byte in range(256)), b"<end>"], {256}, [256])


def make(tokens: list[bytes], special_ids: set[int], eos_token_ids: Sequence[int]) -> LLTokenizer:
    wrapper = TokenizerWrapper(_Source(tokens, special_ids, eos_token_ids))
    return LLTokenizer(wrapper, eos_token=list(eos_token_ids) or None)
