"""A request's fields become its parameters, and the model's defaults what it leaves out."""

from dataclasses import fields
from typing import Any

import pytest

from cluster.api.models.model import Model
from cluster.api.requests.chat.chat_call import chat_call
from cluster.api.requests.completions import completion_call
from cluster.api.requests.protocol import ChatRequest, CompletionRequest, GenerationRequest
from cluster.api.requests.validate import validate
from engine.sampling_params import SamplingParams

DEFAULTS = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1}
MODEL = Model(name="m", max_model_len=64, vocab_size=1000, default_sampling=DEFAULTS)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, SamplingParams(**DEFAULTS)),
        ({"temperature": None}, SamplingParams(**DEFAULTS)),
        ({"temperature": 0, "top_k": 0}, SamplingParams(**DEFAULTS | {"temperature": 0, "top_k": 0})),
        ({"top_k": -1}, SamplingParams(**DEFAULTS | {"top_k": 0})),
        ({"beam_width": 2}, SamplingParams(beam_width=2)),
    ],
)
def test_defaults(given: dict[str, Any], expected: SamplingParams) -> None:
    text = validate(CompletionRequest, {"model": "m", "prompt": "a", "max_tokens": 16, **given})
    assert completion_call(text, MODEL).params == expected
    messages = [{"role": "user", "content": "a"}]
    chat = validate(ChatRequest, {"model": "m", "messages": messages, "max_tokens": 16, **given})
    assert chat_call(chat, MODEL).params == expected


def test_every_parameter_can_be_asked_for() -> None:
    own = {"logprobs", "best_of"}  # of completions; in chat the one is `top_logprobs`, the other is refused
    names = {field.name for field in fields(SamplingParams)}
    assert names <= CompletionRequest.model_fields.keys()
    assert names - own <= GenerationRequest.model_fields.keys()


def test_parameters_have_their_fields_names() -> None:
    given = {
        "min_p": 0.25,
        "frequency_penalty": -1.5,
        "stop_token_ids": [3],
        "ignore_eos": True,
        "logit_bias": {"5": 2},
    }
    for kind, call, prompt in (
        (CompletionRequest, completion_call, {"prompt": "a"}),
        (ChatRequest, chat_call, {"messages": [{"role": "user", "content": "a"}]}),
    ):
        params = call(validate(kind, {"max_tokens": 16, **prompt, **given}), MODEL).params
        assert params == SamplingParams(**{**DEFAULTS, **given, "logit_bias": {5: 2}})
