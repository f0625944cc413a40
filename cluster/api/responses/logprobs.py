"""Log probabilities in the formats of chat, of completions, and of prompts."""

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from cluster.api.responses.protocol import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from engine.outputs import Logprob, PositionLogprobs

LOWEST = -9999.0  # JSON has no infinity


def chat_logprobs(token_ids: list[int], positions: Sequence[PositionLogprobs], count: int) -> ChatLogprobs:
    """Each token with its own and the `count` most likely ones of its position."""
    content = []
    for token_id, position in zip(token_ids, positions, strict=True):
        own = position[token_id]
        top = [
            TopLogprob(entry.decoded_token, _finite(entry), _bytes(entry)) for entry in _most_likely(position, count)
        ]
        content.append(TokenLogprob(own.decoded_token, _finite(own), _bytes(own), top))
    return ChatLogprobs(content)


class Offsets:
    """Where a choice's tokens begin in its text: after the characters completed by earlier tokens.

    Counted from the tokens' bytes, so that it does not depend on how they were divided into events.
    A token that completes a character begins where the character does.
    """

    def __init__(self, skipped: frozenset[int]) -> None:
        """`skipped`: ids of special tokens that the text does not show."""
        self._skipped = skipped
        self._num_characters = 0
        self._undecoded = b""

    def prompt(self, texts: Iterable[bytes]) -> list[int]:
        """Offsets of an echoed prompt's tokens, which are all shown, before the choice's own."""
        offsets = [self._push(text) for text in texts]
        self._num_characters += len(self._undecoded.decode(errors="replace"))
        self._undecoded = b""
        return offsets

    def next(self, token_id: int, text: bytes) -> int:
        return self._num_characters if token_id in self._skipped else self._push(text)

    def _push(self, text: bytes) -> int:
        offset = self._num_characters
        if _is_broken_by(self._undecoded, text):
            offset += len(self._undecoded.decode(errors="replace"))
        data = self._undecoded + text
        decoded, used = codecs.utf_8_decode(data, "replace", False)
        self._undecoded = data[used:]
        self._num_characters += len(decoded)
        return offset


def _is_broken_by(undecoded: bytes, text: bytes) -> bool:
    """Whether the text does not continue the beginning of a character, which is then one of its
    own.
    """
    try:
        codecs.utf_8_decode(undecoded + text[:1], "strict", False)
    except UnicodeDecodeError:
        return bool(undecoded)
    return False


def completion_logprobs(
    token_ids: list[int],
    positions: Sequence[PositionLogprobs],
    count: int,
    offsets: Offsets,
) -> CompletionLogprobs:
    """Columns for a choice's next tokens. The dict of the most likely ones includes the sampled
    token, so it has up to count + 1 entries. Of tokens with the same text it has the most likely
    one.
    """
    columns = CompletionLogprobs([], [], [], [])
    for token_id, position in zip(token_ids, positions, strict=True):
        _add(columns, token_id, position, count)
        columns.text_offset.append(offsets.next(token_id, position[token_id].token_bytes))
    return columns


def echoed_logprobs(
    token_ids: list[int],
    positions: Sequence[PositionLogprobs | None],
    count: int,
    offsets: Offsets,
    prompt: str,
) -> CompletionLogprobs:
    """As `completion_logprobs`, for a prompt; the first token's text is what the others leave of
    the prompt's.
    """
    columns = CompletionLogprobs([], [], [], [])
    texts = [
        b"" if position is None else position[i].token_bytes for i, position in zip(token_ids, positions, strict=True)
    ]
    whole = prompt.encode(errors="replace")
    texts[0] = whole[: max(0, len(whole) - sum(map(len, texts)))]
    for token_id, position, text in zip(token_ids, positions, texts, strict=True):
        if position is not None:
            _add(columns, token_id, position, count)
        else:
            columns.tokens.append(text.decode(errors="replace"))
            columns.token_logprobs.append(None)
            columns.top_logprobs.append(None)
    columns.text_offset.extend(offsets.prompt(texts))
    return columns


def _add(columns: CompletionLogprobs, token_id: int, position: PositionLogprobs, count: int) -> None:
    own = position[token_id]
    top: dict[str, float] = {}
    for entry in [*_most_likely(position, count), own]:
        top.setdefault(entry.decoded_token, _finite(entry))
    columns.tokens.append(own.decoded_token)
    columns.token_logprobs.append(_finite(own))
    columns.top_logprobs.append(top)


def prompt_logprobs(positions: Sequence[PositionLogprobs | None]) -> list[dict[int, dict[str, Any]] | None]:
    """For each position of the prompt: token id -> logprob, rank, decoded_token."""
    return [
        None if position is None else {token_id: _plain(entry) for token_id, entry in position.items()}
        for position in positions
    ]


def _plain(entry: Logprob) -> dict[str, Any]:
    return {"logprob": _finite(entry), "rank": entry.rank, "decoded_token": entry.decoded_token}


def _most_likely(position: PositionLogprobs, count: int) -> list[Logprob]:
    return sorted(position.values(), key=lambda entry: entry.rank)[:count]


def _bytes(entry: Logprob) -> list[int]:
    return list(entry.token_bytes)


def _finite(entry: Logprob) -> float:
    return max(entry.logprob, LOWEST)
