"""How deltas travel: nearly all as a `PlainDelta`, none changed by it."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from cluster.replica.delta_channel.messages import News, PlainDelta, as_sent
from engine.outputs import CompletionOutput, Logprob, RequestOutput

CHOICE = CompletionOutput(0, "w\u00f6rld\0", [5, 6], 3)
PLAIN = RequestOutput("one", 1, [], [CHOICE], finished=False)
MORE: dict[str, dict[str, Any]] = {
    "of the request": {
        "prompt_token_ids": [1],
        "finished": True,
        "prompt": "p",
        "prompt_logprobs": [None],
        "error": "no",
        "max_tokens": 5,
        "outputs": [CHOICE, replace(CHOICE, index=1)],
    },
    "of the choice": {
        "index": 1,
        "cumulative_logprob": -1.5,
        "logprobs": [{5: Logprob(-1.5, 1, b"w")}],
        "finish_reason": "stop",
    },
}


def travelled(deltas: list[RequestOutput]) -> list[RequestOutput | PlainDelta]:
    data = msgspec.msgpack.encode(News([as_sent(delta) for delta in deltas]))
    return msgspec.msgpack.decode(data, type=News).deltas


def test_a_plain_delta_is_short_and_arrives_as_it_was() -> None:
    (sent,) = travelled([PLAIN])
    assert isinstance(sent, PlainDelta)
    assert sent.as_output() == PLAIN
    assert len(msgspec.msgpack.encode(sent)) < 24


@pytest.mark.parametrize("field", MORE["of the request"])
def test_a_delta_that_says_more_of_its_request_travels_whole(field: str) -> None:
    delta = replace(PLAIN, **{field: MORE["of the request"][field]})
    assert travelled([PLAIN, delta, PLAIN]) == [as_sent(PLAIN), delta, as_sent(PLAIN)]


@pytest.mark.parametrize("field", MORE["of the choice"])
def test_a_delta_that_says_more_of_its_choice_travels_whole(field: str) -> None:
    delta = replace(PLAIN, outputs=[replace(CHOICE, **{field: MORE["of the choice"][field]})])
    assert travelled([delta]) == [delta]
