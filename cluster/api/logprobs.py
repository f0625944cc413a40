"""Log probabilities in the forms that clients know: chat's, completions', and a plain one for prompts."""

from collections.abc import Sequence
from typing import Any

from cluster.api.responses import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
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


def completion_logprobs(
    token_ids: list[int],
    positions: Sequence[PositionLogprobs | None],
    count: int,
    *,
    offset: int = 0,
    first_text: str = "",
) -> CompletionLogprobs:
    """In columns. `offset`: characters of the choice before the first token; `first_text`: a position's that has none.

    The dict of the most likely ones has the sampled token too, so up to count + 1 entries. Of two tokens with the same
    text it has the more likely one.
    """
    columns = CompletionLogprobs([], [], [], [])
    for token_id, position in zip(token_ids, positions, strict=True):
        text, logprob = first_text, None
        top: dict[str, float] | None = None
        if position is not None:
            own = position[token_id]
            text, logprob, top = own.decoded_token, _finite(own), {}
            for entry in [*_most_likely(position, count), own]:
                top.setdefault(entry.decoded_token, _finite(entry))
        columns.tokens.append(text)
        columns.token_logprobs.append(logprob)
        columns.top_logprobs.append(top)
        columns.text_offset.append(offset)
        offset += len(text)
    return columns


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
