"""Events of routes other than completions, added up: a stream is its whole answer."""

from typing import Any

import pytest

from cluster.chaos.compare import problems
from cluster.chaos.transcript import Transcript

USAGE = {"input_tokens": 3, "output_tokens": 2}
CALL = {"type": "function_call", "name": "f"}
SAID = {"type": "message", "content": []}
RESPONSE = {
    "object": "response",
    "status": "completed",
    "usage": USAGE,
    "output": [CALL | {"arguments": '{"a": 1}'}, SAID | {"content": [{"text": "Yes."}]}],
}
RESPONSE_EVENTS = [
    {"type": "response.created", "response": {"error": None}},
    {"type": "response.output_item.added", "item": CALL | {"arguments": ""}},
    {"type": "response.function_call_arguments.delta", "delta": '{"a"'},
    {"type": "response.function_call_arguments.delta", "delta": ": 1}"},
    {"type": "response.output_item.added", "item": SAID},
    {"type": "response.output_text.delta", "delta": "Yes."},
    {"type": "response.completed", "response": RESPONSE},
]
MESSAGE_EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {"content": []}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Ye"}},
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "s."}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "name": "f"}},
    {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{}"}},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use"},
        "usage": USAGE | {"cache_read_input_tokens": 4},
    },
    {"type": "message_stop"},
]


def told(*events: dict[str, Any]) -> Transcript:
    made = Transcript()
    for event in events:
        made.take(event)
    return made


def test_a_response() -> None:
    streamed = told(*RESPONSE_EVENTS)
    assert streamed.is_complete and problems(told(RESPONSE), streamed) == set()
    assert (streamed.choices[0].text, streamed.usage) == ('[function_call f]{"a": 1}[message ]Yes.', (3, 2))
    assert problems(told(*RESPONSE_EVENTS[:-1]), streamed) == {"lost"}


def test_a_message() -> None:
    streamed = told(*MESSAGE_EVENTS)
    assert streamed.is_complete
    assert streamed.choices[0].text == "[text ]Yes.[tool_use f]{}"
    assert (streamed.choices[0].stop_reason, streamed.usage) == ("tool_use", (7, 2))
    assert problems(told(*MESSAGE_EVENTS[:-1]), streamed) == {"lost"}
    assert problems(told(*MESSAGE_EVENTS[:3], *MESSAGE_EVENTS[2:]), streamed) != set()


@pytest.mark.parametrize(
    ("answer", "changed"),
    [
        ({"data": [{"index": 0, "score": 0.25}]}, {"data": [{"index": 0, "score": 0.2500001}]}),
        ({"data": [{"index": 0, "embedding": [1.0, 0.5]}]}, {"data": [{"index": 0, "embedding": [1.0, 0.25]}]}),
        (
            {"results": [{"index": 1, "relevance_score": 0.5}, {"index": 0, "relevance_score": 0.5}]},
            {"results": [{"index": 0, "relevance_score": 0.5}, {"index": 1, "relevance_score": 0.5}]},
        ),
    ],
)
def test_numbers_and_places(answer: dict[str, Any], changed: dict[str, Any]) -> None:
    usage = {"usage": {"prompt_tokens": 3}}
    right = told(answer | usage)
    assert right.is_complete and problems(told(answer | usage), right) == set()
    assert problems(told(changed | usage), right) == {"changed"}
