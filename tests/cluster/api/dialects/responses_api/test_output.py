"""Output items and events, from a chat's deltas."""

import msgspec
import pytest

from cluster.api.dialects.responses_api.answer import ResponseEvent
from cluster.api.dialects.responses_api.output import Output
from cluster.api.responses.protocol import CalledFunction, ChatDelta, ToolCallDelta


def content(*texts: str) -> list[ChatDelta]:
    return [ChatDelta(content=text) for text in texts]


def call(name: str, *arguments: str) -> list[ChatDelta]:
    first = ToolCallDelta(0, CalledFunction(arguments[0], name), f"call_{name}", "function")
    others = [ToolCallDelta(0, CalledFunction(piece)) for piece in arguments[1:]]
    return [ChatDelta(tool_calls=[each]) for each in (first, *others)]


def events_of(output: Output, deltas: list[ChatDelta]) -> list[ResponseEvent]:
    events = [event for delta in deltas for event in output.add(delta)]
    return [*events, *output.end("completed")]


def test_each_kind_of_content_and_each_call_is_an_item() -> None:
    deltas = [
        ChatDelta(reasoning="One "),
        ChatDelta(reasoning="two"),
        *content("Let ", "me"),
        *call("a", "{", "}"),
        *call("b", ""),
    ]
    output = Output("resp_77")
    events = msgspec.to_builtins(events_of(output, deltas))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [item.id for item in output.items] == ["rs_77_0", "msg_77_1", "fc_77_2", "fc_77_3"]
    items = msgspec.to_builtins(output.items)
    assert [item["status"] for item in items] == 4 * ["completed"]
    assert (items[0]["content"][0]["text"], items[1]["content"][0]["text"]) == ("One two", "Let me")
    assert [(item["name"], item["call_id"], item["arguments"]) for item in items[2:]] == [
        ("a", "call_a", "{}"),
        ("b", "call_b", ""),
    ]
    for index, item in enumerate(items):
        kinds = [event["type"] for event in events if event["output_index"] == index]
        assert (kinds[0], kinds[-1]) == ("response.output_item.added", "response.output_item.done")
        pieces = [event["delta"] for event in events if event["output_index"] == index and "delta" in event]
        assert "".join(pieces) == item.get("arguments", "".join(part["text"] for part in item.get("content", ())))


@pytest.mark.parametrize("cut", [1, 3, 7])
def test_items_do_not_depend_on_how_the_text_was_cut(cut: int) -> None:
    text = "Let me look."
    whole, cut_up = Output("resp_1"), Output("resp_1")
    events_of(whole, content(text))
    events_of(cut_up, content(*(text[start : start + cut] for start in range(0, len(text), cut))))
    assert whole.items == cut_up.items


def test_an_answer_without_anything_is_an_empty_message() -> None:
    output = Output("resp_1", num_events=5)
    events = list(output.end("incomplete"))
    assert [event.sequence_number for event in events] == list(range(5, 5 + len(events)))
    (item,) = output.items
    assert (item.status, msgspec.to_builtins(item)["content"][0]["text"]) == ("incomplete", "")


def test_a_call_that_was_cut_off_is_incomplete_and_the_items_before_it_are_not() -> None:
    output = Output("resp_1")
    for delta in [*content("So:"), *call("a", '{"ci')]:
        list(output.add(delta))
    list(output.end("incomplete"))
    assert [item.status for item in output.items] == ["completed", "incomplete"]
