"""From a caller's dict to a request."""

from dataclasses import replace
from typing import Any

import pytest

from cluster.api.models.model import Model, Models
from cluster.api.requests.chat.chat_call import chat_call
from cluster.api.requests.protocol import ChatRequest
from cluster.api.requests.validate import validate
from cluster.gateway.handle.read import read as read_for_model
from cluster.gateway.handle.read import request_id_of
from engine.errors import InvalidRequest
from engine.request import ChatPrompt, Request
from engine.sampling_params import SamplingParams
from tests.cluster.api.scripted import ScriptedService

MODEL = Model(name="m", max_model_len=64, vocab_size=1000)


def read(request: Any, request_id: str, model: Model, *, streams: bool) -> Request:
    return read_for_model(request, request_id, Models.one(ScriptedService(), model), streams=streams)[1]


def test_a_request_has_an_id_whatever_is_wrong_with_it() -> None:
    assert request_id_of({"request_id": "mine", "n": 0}) == "mine"
    ids = {request_id_of(request) for request in ({}, {"request_id": 5}, "no dict")}
    assert len(ids) == 3 and all(made.startswith("handle-") for made in ids)


def test_values_that_json_cannot_hold() -> None:
    request = {"prompt": (1, 2), "stop": ("a", "b"), "logit_bias": {3: 1.0, "4": -1.0}, "stop_token_ids": (5,)}
    made = read(request, "r", MODEL, streams=False)
    params = SamplingParams(stop=("a", "b"), logit_bias={3: 1.0, 4: -1.0}, stop_token_ids=(5,))
    assert (made.prompt, made.params) == ([1, 2], params)


@pytest.mark.parametrize("priority", [0, 5, 2**31 - 1, None])
def test_priorities(priority: int | None) -> None:
    made = read({"prompt": [1, 2], "priority": priority}, "r", MODEL, streams=False)
    assert (made.prompt, made.priority) == ([1, 2], priority or 0)


def test_messages_are_those_of_http() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts, "name": None}]
    made = read({"messages": messages}, "r", MODEL, streams=False)
    assert made.prompt == ChatPrompt(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one\ntwo"}]
    )


def test_none_is_a_field_left_out() -> None:
    request = {
        "prompt": "x",
        "messages": None,
        "temperature": None,
        "stop": None,
        "cache_salt": None,
        "max_tokens": None,
    }
    made = read(request, "r", MODEL, streams=False)
    assert made.params == SamplingParams(max_tokens=None)


TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
ASKED = {"role": "user", "content": "Hello?"}


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": "none"},
        {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}},
        {"response_format": {"type": "json_object"}},
        {"reasoning_effort": "none", "documents": [{"text": "a"}], "chat_template_kwargs": {"b": 1}},
        {"messages": [ASKED, {"role": "assistant", "content": "It is"}], "continue_final_message": True},
        {"truncate_prompt_tokens": -1, "max_tokens": 5, "add_special_tokens": True},
        {"model": "m", "stream": False, "user": "me", "n": 2, "use_beam_search": True},
    ],
)
def test_a_conversation_is_that_of_http(fields: dict[str, Any]) -> None:
    model = replace(MODEL, tool_format="hermes", reasoning_ids=(5, 6))
    body = {"messages": [ASKED], "max_tokens": 16} | fields
    (by_http,) = chat_call(validate(ChatRequest, body), model).requests
    assert replace(read(body, "r", model, streams=False), id=by_http.id) == by_http


@pytest.mark.parametrize(
    ("fields", "param"), [({"stream": False}, "stream"), ({"tools": TOOLS}, "tools"), ({"suffix": "x"}, "suffix")]
)
def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read({"messages": [ASKED]} | fields, "r", MODEL, streams=True)
    assert caught.value.param == param
