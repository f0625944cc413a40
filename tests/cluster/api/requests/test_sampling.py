"""The model's own defaults, for what a request leaves out."""

from typing import Any

import pytest

from cluster.api.model import Model
from cluster.api.requests.chat import chat_call
from cluster.api.requests.completions import completion_call
from cluster.api.requests.protocol import ChatRequest, CompletionRequest
from cluster.api.requests.validate import validate
from engine.sampling_params import SamplingParams

DEFAULTS = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1}
MODEL = Model(name="m", max_model_len=64, vocab_size=1000, default_sampling=DEFAULTS)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, SamplingParams(**DEFAULTS)),
        ({"temperature": None}, SamplingParams(**DEFAULTS)),
        ({"temperature": 0, "top_k": 0}, SamplingParams(**DEFAULTS | {"temperature": 0, "top_k": 0})),
        ({"top_k": -1}, SamplingParams(**DEFAULTS | {"top_k": 0})),
        ({"beam_width": 2}, SamplingParams(beam_width=2)),
    ],
)
def test_defaults(fields: dict[str, Any], expected: SamplingParams) -> None:
    text = validate(CompletionRequest, {"model": "m", "prompt": "a", "max_tokens": 16, **fields})
    assert completion_call(text, MODEL).params == expected
    messages = [{"role": "user", "content": "a"}]
    chat = validate(ChatRequest, {"model": "m", "messages": messages, "max_tokens": 16, **fields})
    assert chat_call(chat, MODEL).params == expected
