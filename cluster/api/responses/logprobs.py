"""Log probabilities in the formats of chat, of completions, and of prompts."""

import codecs
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cluster.api.requests.call import Call
from cluster.api.responses.protocol import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from engine.outputs import Logprob, PositionLogprobs

LOWEST = -9999.0  # JSON has no infinity


Naming = Callable[[int, bytes], str]  # what an answer calls a token, of its id and its text


def by_text(_: int, text: bytes) -> str:
    """Halves of characters have all the same."""
    return text.decode(errors="replace")


def by_id(token_id: int, _: bytes) -> str:
    """As vLLM's `return_tokens_as_token_ids` has it."""
    return f"token_id:{token_id}"


def naming_of(call: Call) -> Naming:
    return by_id if call.names_tokens_by_id else by_text


def chat_logprobs(
    token_ids: list[int], positions: Sequence[PositionLogprobs], count: int, naming: Naming = by_text
) -> ChatLogprobs:
    """Each token with its own and the `count` most likely ones of its position."""
    content = []
    for token_id, position in zip(token_ids, positions, strict=True):
        own = position[token_id]
        top = [
            TopLogprob(naming(other, entry.token_bytes), _finite(entry), _bytes(entry))
            for other, entry in _most_likely(position, count)
        ]
        content.append(TokenLogprob(naming(token_id, own.token_bytes), _finite(own), _bytes(own), top))
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
    naming: Naming = by_text,
) -> CompletionLogprobs:
    """Columns for a choice's next tokens. The dict of the most likely ones includes the sampled
    token, so it has up to count + 1 entries. Of tokens with the same text it has the most likely
    one.
    """
    columns = CompletionLogprobs([], [], [], [])
    for token_id, position in zip(token_ids, positions, strict=True):
        _add(columns, token_id, position, count, naming)
        columns.text_offset.append(offsets.next(token_id, position[token_id].token_bytes))
    return columns


def echoed_logprobs(
    token_ids: list[int],
    positions: Sequence[PositionLogprobs | None],
    count: int,
    offsets: Offsets,
    prompt: str,
    naming: Naming = by_text,
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
            _add(columns, token_id, position, count, naming)
        else:
            columns.tokens.append(naming(token_id, text))
            columns.token_logprobs.append(None)
            columns.top_logprobs.append(None)
    columns.text_offset.extend(offsets.prompt(texts))
    return columns


def _add(columns: CompletionLogprobs, token_id: int, position: PositionLogprobs, count: int, naming: Naming) -> None:
    own = position[token_id]
    top: dict[str, float] = {}
    for other, entry in [*_most_likely(position, count), (token_id, own)]:
        top.setdefault(naming(other, entry.token_bytes), _finite(entry))
    columns.tokens.append(naming(token_id, own.token_bytes))
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


def _most_likely(position: PositionLogprobs, count: int) -> list[tuple[int, Logprob]]:
    return sorted(position.items(), key=lambda item: item[1].rank)[:count]


def _bytes(entry: Logprob) -> list[int]:
    return list(entry.token_bytes)


def _finite(entry: Logprob) -> float:
    return max(entry.logprob, LOWEST)
