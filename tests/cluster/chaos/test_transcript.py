"""An answer, put together from its chunks."""

import json

from cluster.chaos.compare import problems
from cluster.chaos.transcript import Transcript


def test_chunks_of_chat_are_joined() -> None:
    events = Transcript()
    entry = {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": -1.5}]}
    assert events.take({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    assert events.take({"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [entry]}}]})
    assert events.take({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": None})
    assert not events.take({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})
    assert events.is_complete
    assert (events.choices[0].text, events.choices[0].finish_reason, events.usage) == ("a", "stop", (3, 1))
    assert json.loads(events.choices[0].tokens[0]) == ["a", (-0.5).hex(), [["b", (-1.5).hex()]]]


def call(name: str | None, arguments: str) -> dict[str, object]:
    return {"function": {"name": name, "arguments": arguments}}


def test_a_whole_answer_is_its_chunks_joined() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    for part, pieces in (
        (
            {"message": {"role": "assistant", "content": "ab"}},
            [{"delta": {"content": "a"}}, {"delta": {"content": "b"}}],
        ),
        ({"text": "ab"}, [{"text": "a"}, {"text": "b"}]),
        (
            {"message": {"content": None, "tool_calls": [call("f", '{"a": 1}'), call("g", "{}")]}},
            [{"delta": {"tool_calls": [part]}} for part in (call("f", '{"a"'), call(None, ": 1}"), call("g", "{}"))],
        ),
    ):
        whole, chunks = Transcript(), Transcript()
        assert whole.take({"choices": [{"index": 0, "finish_reason": "stop"} | part], "usage": usage})
        for piece in pieces:
            chunks.take({"choices": [{"index": 0} | piece]})
        chunks.take({"choices": [{"index": 0, "delta": {}, "text": "", "finish_reason": "stop"}], "usage": usage})
        assert whole.is_complete and problems(whole, chunks) == set()


def test_token_ids_are_told_apart() -> None:
    def told(*ids: list[int]) -> Transcript:
        made = Transcript()
        for some in ids:
            made.take({"choices": [{"index": 0, "text": "a", "token_ids": some, "finish_reason": "stop"}]})
        return made

    assert told([1], [2]).choices[0].token_ids == [1, 2]
    assert problems(told([1], [2]), told([1], [2])) == set()
    assert problems(told([1], [2]), told([1], [3])) != set()
