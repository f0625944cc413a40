"""An answer's blocks, and the events that tell of them, of a chat's deltas."""

import pytest

from cluster.api.dialects.messages_api.answer import BlockStart, BlockStop, TextBlock, ThinkingBlock, ToolUseBlock
from cluster.api.dialects.messages_api.blocks import Blocks
from cluster.api.responses.protocol import CalledFunction, ChatDelta, ToolCallDelta


def called(arguments: str, name: str) -> ChatDelta:
    return ChatDelta(tool_calls=[ToolCallDelta(0, CalledFunction(arguments, name), id="call-1")])


def test_a_block_ends_where_another_kind_begins() -> None:
    blocks = Blocks()
    deltas = [ChatDelta(reasoning="hm"), ChatDelta(reasoning="m"), ChatDelta(content="a"), ChatDelta(content="b")]
    events = [event for delta in (*deltas, called("{}", "f"), called("{}", "g")) for event in blocks.add(delta)]
    events += blocks.end()
    begun = [event.index for event in events if isinstance(event, BlockStart)]
    ended = [event.index for event in events if isinstance(event, BlockStop)]
    assert begun == ended == [0, 1, 2, 3]
    whole = [ThinkingBlock("hmm"), TextBlock("ab"), ToolUseBlock("call-1", "f", {}), ToolUseBlock("call-1", "g", {})]
    assert blocks.all() == whole
    assert list(blocks.end()) == []


def test_the_open_text_is_known() -> None:
    blocks = Blocks()
    assert blocks.open_text is None
    list(blocks.add(ChatDelta(reasoning="hm")))
    assert blocks.open_text is None
    list(blocks.add(ChatDelta(content="a")))
    assert blocks.open_text == 1
    list(blocks.end())
    assert blocks.open_text is None


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ('{"a": [1, 2]}', {"a": [1, 2]}),
        ('{"a": "cut of', {"a": "cut of"}),
        ("[1, 2]", {}),
        ("nothing", {}),
        ('{"a": "b\n\tc", "d": 1}', {"a": "b\n\tc", "d": 1}),
        (r'{"a": ["\ud83d", "\ud83d\ude00", "\ude00\""]}', {"a": ["?", "😀", '?"']}),
        ('{"a": ' + "[" * 200_000, {}),  # what a model may write that goes round in a circle
        ('{"a": ' + "9" * 5000 + "}", {}),
    ],
)
def test_a_calls_input_is_what_can_be_read(arguments: str, value: dict[str, object]) -> None:
    blocks = Blocks()
    list(blocks.add(called(arguments, "f")))
    assert blocks.all() == [ToolUseBlock("call-1", "f", value)]
