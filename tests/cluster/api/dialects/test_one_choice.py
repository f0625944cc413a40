"""A chat's only choice as deltas, however its text was cut."""

from typing import Any

import pytest
from msgspec import UNSET

from cluster.api.answers.form import Form
from cluster.api.dialects.one_choice import OneChoice
from cluster.api.errors import ApiError
from cluster.api.requests.call import Call
from cluster.api.responses.generation import Update
from engine.outputs import CompletionOutput, Logprob, RequestOutput
from engine.request import Request
from engine.sampling_params import SamplingParams

FORM = Form(tool_format="hermes", reasoning_ids=(1, 2))
TEXT = '<think>\nOne two</think>\n\nLook.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def choice(**params: Any) -> OneChoice:
    request = Request("a", "ask", SamplingParams(**params))
    call = Call(
        kind="msg",
        id="a",
        requests=(request,),
        stream=True,
        include_usage=False,
        echo=False,
        prompt_logprobs=False,
        form=FORM,
    )
    return OneChoice(call)


def update(text: str, ids: list[int], reason: str | None = None, prompt: tuple[int, ...] = ()) -> Update:
    piece = CompletionOutput(0, text, ids, finish_reason=reason)
    output = RequestOutput("a", 0, list(prompt), [piece], finished=reason is not None)
    return Update(0, output)


@pytest.mark.parametrize("cut", [1, 5, len(TEXT)])
def test_deltas_joined_do_not_depend_on_the_cut(cut: int) -> None:
    one = choice()
    starts = range(0, len(TEXT), cut)
    deltas = [
        delta
        for start in starts
        for delta in one.add(
            update(TEXT[start : start + cut], [5], "stop" if start == starts[-1] else None, prompt=(7, 8, 9))
        )
    ]
    calls = [each for delta in deltas for each in delta.tool_calls or ()]
    assert "".join(delta.reasoning for delta in deltas if delta.reasoning is not UNSET) == "One two"
    assert "".join(delta.content for delta in deltas if delta.content is not UNSET) == "Look."
    assert [each.function.name for each in calls if each.id is not UNSET] == ["now"]
    assert "".join(each.function.arguments for each in calls) == "{}"
    assert (one.finish_reason, one.num_prompt_tokens) == ("tool_calls", 3)
    usage = one.close()
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, len(starts))


def test_tokens_of_reasoning_are_counted_to_its_end() -> None:
    one = choice()
    one.add(update("<think>a", [1, 5, 5]))
    one.add(update("b</think>c", [5, 2, 6], "stop"))
    assert one.num_reasoning_tokens == 5
    without = choice()
    without.add(update("c", [6], "stop"))
    assert without.num_reasoning_tokens == 0


def test_a_choice_that_has_not_ended_is_an_error() -> None:
    one = choice()
    one.add(update("c", [6]))
    with pytest.raises(ApiError, match="1 choices unfinished"):
        one.close()


def test_log_probabilities_are_those_behind_the_reasoning() -> None:
    """Whose tokens have the others' text; without any reasoning they are all tokens'."""
    for texts, behind in (
        ({1: "<think>", 5: "One", 2: "</think>", 6: "Look."}, ["Look."]),
        ({5: "Lo", 6: "ok"}, ["Lo", "ok"]),
    ):
        one = choice(logprobs=0)
        for number, (token_id, text) in enumerate(texts.items(), 1):
            piece = update(text, [token_id], "stop" if number == len(texts) else None, prompt=(7,))
            piece.output.outputs[0].logprobs = [{token_id: Logprob(-1.0, 1, text.encode())}]
            one.add(piece)
        assert [each.token for each in one.text_logprobs(0)] == behind
        assert [each.token for each in one.text_logprobs(1)] == behind[1:]
