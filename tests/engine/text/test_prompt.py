"""A prompt in each of its forms, as token ids and as the text that is told."""

from typing import Any

import pytest

from engine.errors import InvalidRequest
from engine.request import ChatPrompt, Prompt, Request
from engine.sampling_params import SamplingParams
from engine.text.prompt import arrive
from tests.engine.support.workloads import TOKENIZER

TEXT = "What is Squadron?"
MESSAGES = [{"role": "user", "content": TEXT}]


def request(prompt: Prompt, **options: Any) -> Request:
    return Request("r", prompt, SamplingParams(), **options)


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


@pytest.mark.parametrize("prompt", [TEXT * 9, TOKENIZER.encode(TEXT * 9)])
def test_of_a_prompt_that_is_cut_the_last_tokens_are_kept(prompt: Prompt) -> None:
    ids = TOKENIZER.encode(TEXT * 9)
    arrival = arrive(request(prompt, max_prompt_tokens=7), TOKENIZER, 20)
    assert arrival.prompt_token_ids == ids[-7:]
    assert arrival.prompt == TOKENIZER.decode(ids[-7:], skip_special_tokens=False)
    whole = arrive(request(prompt, max_prompt_tokens=len(ids)), TOKENIZER, 100)
    assert (whole.prompt_token_ids, whole.prompt) == (ids, TEXT * 9)


def test_a_conversation_that_is_cut_ends_as_it_did() -> None:
    prompt = ChatPrompt([{"role": "user", "content": TEXT * 9}])
    ids = TOKENIZER.encode_chat(prompt)
    assert arrive(request(prompt, max_prompt_tokens=9), TOKENIZER, 20).prompt_token_ids == ids[-9:]


def test_a_prompt_that_is_cut_has_a_limit_too() -> None:
    with pytest.raises(InvalidRequest) as caught:
        arrive(request("\x01" * 200, max_prompt_tokens=9), TOKENIZER, 20)
    assert caught.value.code == "context_length_exceeded" and "exceed 8 contexts of 20" in caught.value.message


def test_what_waits_is_estimated_by_what_is_kept() -> None:
    assert request(TEXT * 50).estimated_tokens > 200
    assert request(TEXT * 50, max_prompt_tokens=9).estimated_tokens == 9
