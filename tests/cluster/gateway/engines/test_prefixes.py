"""What a gateway remembers of prompts' beginnings."""

from dataclasses import replace
from typing import Any

import pytest

from cluster.gateway.engines.prefixes import (
    MAX_BYTES,
    MAX_REMEMBERED,
    MAX_REPLICAS,
    Prefixes,
    beginnings_of,
)
from engine.kv_events.beginnings import ADAPTER_PIECES, NAME_BYTES, PIECE_BYTES
from engine.request import Adapter, ChatPrompt, Prompt, Request
from engine.sampling_params import SamplingParams

TEXT = "".join(map(str, range(1000)))
SYSTEM = {"role": "system", "content": TEXT}


def asked(prompt: Prompt, **more: Any) -> Request:
    return Request("mine", prompt, SamplingParams(), **more)


def shared(one: Prompt, other: Prompt) -> int:
    """Pieces that prompts have in common, at their beginning and nowhere else."""
    same = [a == b for a, b in zip(beginnings_of(asked(one)), beginnings_of(asked(other)), strict=False)]
    assert same == sorted(same, reverse=True)
    return sum(same)


@pytest.mark.parametrize(
    "prompt",
    [TEXT, list(range(700)), ChatPrompt([SYSTEM]), ChatPrompt([{"role": "user", "content": [{"text": TEXT}]}])],
)
def test_there_is_a_digest_for_each_whole_piece(prompt: Prompt) -> None:
    beginnings = beginnings_of(asked(prompt))
    assert len(beginnings) == len(set(beginnings)) in (2800 // PIECE_BYTES, 2890 // PIECE_BYTES, 2940 // PIECE_BYTES)
    assert {len(each) for each in beginnings} == {NAME_BYTES}
    assert beginnings_of(asked(prompt)) == beginnings


def test_a_piece_counts_only_behind_the_same_pieces() -> None:
    assert shared(TEXT, TEXT[:1000] + "!" + TEXT[1001:]) == 1000 // PIECE_BYTES
    assert shared(TEXT, "!" + TEXT[1:]) == 0
    assert shared(list(range(500)), [*range(320), 7, *range(321, 500)]) == 5
    assert shared("short", "short") == 0


def test_a_conversation_that_goes_on_begins_as_it_did() -> None:
    turn = [SYSTEM, {"role": "user", "content": "What is 2 + 2?"}]
    then = [*turn, {"role": "assistant", "content": "4"}, {"role": "user", "content": TEXT}]
    first = ChatPrompt(turn)
    assert shared(first, ChatPrompt(then)) == len(beginnings_of(asked(first))) > 10
    tools = [{"type": "function", "function": {"name": "add"}}]
    assert shared(first, ChatPrompt(turn, tools)) == shared(first, ChatPrompt(turn, None, {"thinks": True})) == 0


def test_cached_blocks_of_others_do_not_count() -> None:
    adapter = Adapter("harbour", "/adapters/harbour", "0123", 8)
    requests = [asked(TEXT), asked(TEXT, cache_salt="a"), asked(TEXT, cache_salt="b"), asked(TEXT, adapter=adapter)]
    assert len({beginnings_of(request)[0] for request in requests}) == 4
    named_otherwise = asked(TEXT, adapter=replace(adapter, name="port"))
    assert beginnings_of(named_otherwise) == beginnings_of(requests[-1])


def test_an_adapter_counts_whatever_the_prompt() -> None:
    adapter = Adapter("harbour", "/adapters/harbour", "0123", 8)
    one, other = (beginnings_of(asked(text, adapter=adapter, cache_salt=text)) for text in ("one", "other"))
    assert one == other and len(one) == len(set(one)) == ADAPTER_PIECES
    prefixes = Prefixes()
    prefixes.remember(one, "a")
    assert prefixes.known(other) == {"a": ADAPTER_PIECES}
    assert prefixes.known(beginnings_of(asked("other", adapter=replace(adapter, digest="4567")))) == {}


@pytest.mark.parametrize(
    "prompt",
    [
        "é\ud800" * MAX_BYTES,
        [0, -1, 1 << 40] * MAX_BYTES,
        ChatPrompt([{"role": "user", "content": "é\ud800" * MAX_BYTES}] * 3),
        ChatPrompt([{"role": "user", "content": object(), "tool_calls": float("nan")}] * 10_000),
        ChatPrompt([{"role": "user", "content": [{"type": "text", "text": "é" * MAX_BYTES}] * 1000}]),
        ChatPrompt([{"role": "user", "content": TEXT * 1000}], variables={"a": 10**5000, "b": {("a", "b"): 1}}),
        ChatPrompt([SYSTEM], [{"enum": [[[["x" * MAX_BYTES] * 10_000]]]}]),
    ],
)
def test_no_prompt_is_too_long_or_too_odd(prompt: Prompt) -> None:
    assert len(beginnings_of(asked(prompt))) == MAX_BYTES // PIECE_BYTES


def test_replicas_are_known_by_what_they_were_sent() -> None:
    prefixes = Prefixes()
    long, short, other = beginnings_of(asked(TEXT)), beginnings_of(asked(TEXT[:600])), beginnings_of(asked("!" * 600))
    assert prefixes.known(long) == {}
    prefixes.remember(long, "one")
    prefixes.remember(short, "two")
    assert prefixes.known(long) == {"one": len(long), "two": 2}
    assert prefixes.known(short) == {"one": 2, "two": 2}
    assert prefixes.known(other) == prefixes.known([]) == {}


def test_what_is_remembered_is_bounded() -> None:
    """What was not used for the longest time is forgotten first."""
    prefixes = Prefixes()
    for number in range(MAX_REPLICAS + 1):
        prefixes.remember([b"hot"], f"replica {number}")
    assert prefixes.known([b"hot"]).keys() == {f"replica {number}" for number in range(1, MAX_REPLICAS + 1)}
    for half in range(3):
        prefixes.remember([b"cold"] if half == 0 else [b"hot"], "one")
        prefixes.remember([b"%d" % number for number in range(half << 20, (half << 20) + MAX_REMEMBERED // 2)], "one")
        assert len(prefixes) <= MAX_REMEMBERED + 2
    assert prefixes.known([b"hot"])["one"] == 1
    assert prefixes.known([b"cold"]) == {}


def test_what_a_cache_has_lost_is_believed_no_more() -> None:
    prefixes = Prefixes()
    long = beginnings_of(asked(TEXT))
    for replica in ("one", "two"):
        prefixes.hear(replica, 0, b"".join(long), b"")
    prefixes.hear("one", 0, b"", b"".join([b"not sent", *long[3:]]))
    assert prefixes.known(long) == {"one": 3, "two": len(long)}
    prefixes.hear("two", 1, b"", b"")
    assert prefixes.known(long) == {"one": 3}
    prefixes.hear("two", 1, b"".join(long[:2]), b"")
    assert prefixes.known(long) == {"one": 3, "two": 2}
    prefixes.hear("two", 1, b"", long[0])
    assert prefixes.known(long) == {"one": 3, "two": 2}, "a longer beginning implies the shorter one"
    prefixes.hear("one", 0, b"", b"".join(long))
    prefixes.hear("two", 1, b"", b"".join(long))
    assert prefixes.known(long) == {}
