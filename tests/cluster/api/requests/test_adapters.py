"""Requests that name an adapter as their model."""

from dataclasses import replace
from typing import Any

import pytest

from cluster.api.errors import ApiError
from cluster.api.models.adapters import Adapters
from cluster.api.models.model import Model, Models
from cluster.api.requests.call import Call
from cluster.api.requests.chat.chat_call import chat_call
from cluster.api.requests.completions import completion_call
from cluster.api.requests.pooled.embeddings import embedding_call
from cluster.api.requests.pooled.protocol import EmbeddingRequest
from cluster.api.requests.protocol import ChatRequest, CompletionRequest
from cluster.api.requests.sampling import find_model
from cluster.api.requests.validate import validate
from cluster.gateway.handle import read
from engine.request import Adapter
from tests.cluster.api.scripted import ScriptedService

ADAPTER = Adapter("harbour", "/adapters/harbour", "0" * 64, 8)
MODEL = Model(name="demo", max_model_len=64, vocab_size=1000, hidden_size=8, adapters=Adapters([ADAPTER]))
MODELS = Models.one(ScriptedService(), MODEL)
MESSAGES = [{"role": "user", "content": "Hello?"}]


def calls(model: str | None) -> list[Call]:
    fields: dict[str, Any] = {} if model is None else {"model": model}
    return [
        chat_call(validate(ChatRequest, fields | {"messages": MESSAGES}), MODEL),
        completion_call(validate(CompletionRequest, fields | {"prompt": ["a", "b"]}), MODEL),
        embedding_call(validate(EmbeddingRequest, fields | {"input": "a"}), MODEL),
    ]


@pytest.mark.parametrize(("name", "adapter"), [("harbour", ADAPTER), ("demo", None), (None, None)])
def test_every_route_and_the_handle_take_it(name: str | None, adapter: Adapter | None) -> None:
    for call in calls(name):
        assert [request.adapter for request in call.requests] == [adapter] * len(call.requests)
        assert call.of_body(MODEL.name, (), b"").model == (name or "demo")
    given = {"prompt": "a"} | ({} if name is None else {"model": name})
    _, request = read.read(given, "r", MODELS, streams=False)
    assert request.adapter == adapter


def test_unknown_names_are_told_which_there_are() -> None:
    with pytest.raises(ApiError, match='There is no model "river" here; there are "demo", "harbour"'):
        find_model({"model": "river"}, MODELS)


def test_of_many_some_are_told() -> None:
    many = Adapters([replace(ADAPTER, name=f"adapter-{number}") for number in range(1000)])
    models = Models.one(ScriptedService(), replace(MODEL, adapters=many))
    with pytest.raises(ApiError, match=r'"adapter-0", .* and 985 more$') as refused:
        find_model({"model": "river"}, models)
    assert len(refused.value.message) < 400


def test_a_request_keeps_the_adapter_that_it_named_while_it_is_read() -> None:
    """Large ones are read in a thread, beside the loop, in which adapters come and go."""
    adapters = Adapters([ADAPTER])
    model = find_model({"model": "harbour"}, Models.one(ScriptedService(), replace(MODEL, adapters=adapters)))
    adapters.change({"harbour": None})
    call = chat_call(validate(ChatRequest, {"model": "harbour", "messages": MESSAGES}), model)
    assert call.requests[0].adapter == ADAPTER
