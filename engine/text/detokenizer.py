"""Tokens to text as they come, never half a character."""

import codecs
from collections.abc import Sequence


class TextState:
    """What a sequence has not emitted yet: bytes of an unfinished character, and text that may
    begin a stop string.
    """

    __slots__ = ("held", "undecoded")

    def __init__(self, undecoded: bytes = b"", held: str = "") -> None:
        self.undecoded = undecoded
        self.held = held

    def copy(self) -> "TextState":
        return TextState(self.undecoded, self.held)


class Detokenizer:
    """Joins token bytes and decodes them as UTF-8; invalid bytes become U+FFFD, as in every
    decoder.
    """

    def __init__(self, token_bytes: Sequence[bytes], special_ids: frozenset[int], vocab_size: int) -> None:
        """`vocab_size` may exceed the tokenizer's: ids beyond it have no text."""
        self._bytes = [*token_bytes, *[b""] * (vocab_size - len(token_bytes))]
        # A token that is whole characters by itself, as most are, needs no decoding.
        self._texts = [_whole(data) for data in self._bytes]
        self._special_ids = special_ids
        # Of tokens whose text depends on nothing; None of others.
        self.whole_texts = [None if index in special_ids else text for index, text in enumerate(self._texts)]

    def push(self, state: TextState, token_id: int, skip_special_tokens: bool) -> str:
        """The text that this token completes."""
        if skip_special_tokens and token_id in self._special_ids:
            return ""
        text = self._texts[token_id]
        if text is not None and not state.undecoded:
            return text
        data = state.undecoded + self._bytes[token_id]
        decoded, used = codecs.utf_8_decode(data, "replace", False)
        state.undecoded = data[used:]
        return decoded

    def flush(self, state: TextState) -> str:
        """What is left at the end of a sequence."""
        text = state.undecoded.decode(errors="replace")
        state.undecoded = b""
        return text


def _whole(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
