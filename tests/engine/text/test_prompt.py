"""A prompt in each of its forms, as token ids and as the text that is told."""

import pytest

from engine.errors import InvalidRequest
from engine.request import ChatPrompt, Prompt, Request
from engine.sampling_params import SamplingParams
from engine.text.prompt import arrive
from tests.engine.support.workloads import TOKENIZER

TEXT = "What is Squadron?"
MESSAGES = [{"role": "user", "content": TEXT}]


def request(prompt: Prompt) -> Request:
    return Request("r", prompt, SamplingParams())


def test_a_completions_prompt_is_told_as_text_whichever_way_it_was_given() -> None:
    ids = TOKENIZER.encode(TEXT)
    for prompt in (TEXT, ids):
        arrival = arrive(request(prompt), TOKENIZER, 100)
        assert (arrival.prompt_token_ids, arrival.prompt) == (ids, TEXT)
    arrival.prompt_token_ids.append(1)
    assert ids == TOKENIZER.encode(TEXT), "the caller's list is the caller's"


def test_a_conversation_is_rendered_and_has_no_text() -> None:
    arrival = arrive(request(ChatPrompt(MESSAGES)), TOKENIZER, 100)
    assert arrival.prompt is None
    assert arrival.prompt_token_ids == TOKENIZER.encode_chat(ChatPrompt(MESSAGES))


@pytest.mark.parametrize("prompt", [TEXT * 50, ChatPrompt([{"role": "user", "content": TEXT * 50}])])
def test_a_text_that_is_longer_than_the_context_is_refused(prompt: Prompt) -> None:
    with pytest.raises(InvalidRequest) as caught:
        arrive(request(prompt), TOKENIZER, 20)
    assert caught.value.code == "context_length_exceeded"
