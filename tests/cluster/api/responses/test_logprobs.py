"""`text_offset`: where in the text that a client is sent its tokens begin."""

import math
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api.models.model import Model
from cluster.api.requests.call import Call
from cluster.api.requests.completions import completion_call
from cluster.api.requests.protocol import CompletionRequest
from cluster.api.requests.validate import validate
from cluster.api.responses.completions import completion_events, completion_result
from cluster.api.responses.generation import Update
from cluster.api.responses.logprobs import Offsets
from cluster.api.responses.plain_events import PlainEvents
from engine.outputs import CompletionOutput, Logprob, RequestOutput
from engine.text.detokenizer import Detokenizer, TextState

SPECIAL = 9
MODEL = Model(name="m", max_model_len=64, vocab_size=100, special_ids=frozenset([SPECIAL]))
PROMPT = "ä<end>"
# The halves of "ä" and of an emoji, a special token amid them, a byte that is no character, a whole
# one.
TOKENS = [
    (1, b"a"),
    (2, b"\xc3"),
    (3, b"\xa4b"),
    (SPECIAL, b"<end>"),
    (4, b"\xf0\x9f"),
    (5, b"\x98\x80"),
    (6, b"\xff"),
    (7, b"c"),
]
TEXT = "aäb😀�c"
OFFSETS = [0, 1, 1, 3, 3, 3, 4, 5]


def call_of(**fields: Any) -> Call:
    return completion_call(validate(CompletionRequest, {"prompt": PROMPT, "logprobs": 0, **fields}), MODEL)


async def updates(size: int) -> Any:
    """The answer in deltas of so many tokens."""
    of_prompt = [None, {8: Logprob(-1.0, 1, b"\xa4")}, {SPECIAL: Logprob(-1.0, 1, b"<end>")}]
    for start in range(0, len(TOKENS), size):
        tokens = TOKENS[start : start + size]
        is_last = start + size >= len(TOKENS)
        choice = CompletionOutput(
            0,
            TEXT if is_last else "",
            [token_id for token_id, _ in tokens],
            start,
            logprobs=[{token_id: Logprob(-1.0, 1, data)} for token_id, data in tokens],
            finish_reason="stop" if is_last else None,
        )
        yield Update(0, RequestOutput("r", 0, [2, 8, SPECIAL], [choice], is_last, PROMPT, of_prompt))


async def streamed(call: Call, size: int) -> list[int]:
    offsets: list[int] = []
    async for part in completion_events(call, MODEL, updates(size), PlainEvents(None)):
        for event in part.split(b"\n\n")[:-1]:
            if b"text_offset" in event:
                chunk = msgspec.json.decode(event.removeprefix(b"data: "))
                offsets += chunk["choices"][0]["logprobs"]["text_offset"]
    return offsets


async def whole(call: Call) -> list[int]:
    answer = msgspec.json.decode(await completion_result(call, MODEL, updates(3)))
    offsets: list[int] = answer["choices"][0]["logprobs"]["text_offset"]
    return offsets


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, OFFSETS),
        ({"skip_special_tokens": False}, [*OFFSETS[:4], *(offset + 5 for offset in OFFSETS[4:])]),
        ({"echo": True}, [0, 0, 1, *(6 + offset for offset in OFFSETS)]),
    ],
    ids=["skipped", "shown", "echo"],
)
async def test_offsets_count_the_characters_of_the_text(fields: dict[str, Any], expected: list[int]) -> None:
    assert await whole(call_of(**fields)) == expected
    for size in (1, 2, 8):
        assert await streamed(call_of(stream=True, **fields), size) == expected


@settings(deadline=None)
@given(data=st.data())
def test_each_token_is_found_at_its_offset(data: st.DataObject) -> None:
    text = data.draw(st.text(min_size=1)).encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))) | {0, len(text)})
    pieces = [text[start:end] for start, end in pairwise(cuts)]
    token_bytes = [*pieces, b"<special>"]
    special = frozenset([len(pieces)])
    token_ids = list(range(len(pieces)))
    for at in data.draw(st.lists(st.integers(0, len(pieces)), max_size=3)):
        token_ids.insert(at, len(pieces))
    detokenizer, state = Detokenizer(token_bytes, special, len(token_bytes)), TextState()
    shown = "".join(detokenizer.push(state, token_id, True) for token_id in token_ids)
    offsets = Offsets(special)
    before = -math.inf
    for token_id in token_ids:
        offset = offsets.next(token_id, token_bytes[token_id])
        assert before <= offset <= len(shown)
        before = offset
        if token_id not in special and not shown[offset:].encode().startswith(token_bytes[token_id]):
            assert token_bytes[token_id] in shown[offset : offset + len(token_bytes[token_id]) + 1].encode()


def test_what_does_not_continue_a_character_begins_after_what_stands_for_it() -> None:
    offsets = Offsets(frozenset())
    pieces = [b"a", "✓".encode()[:2], b"t", b"cats", "✓".encode()[:1], "✓".encode()[1:2], b"\xff", b"x", b"y"]
    assert b"".join(pieces).decode(errors="replace") == "a\ufffdtcats\ufffd\ufffdxy"
    assert [offsets.next(number, piece) for number, piece in enumerate(pieces)] == [0, 1, 2, 3, 7, 7, 8, 9, 10]
