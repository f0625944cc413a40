"""The model that is served, by its name and without one."""

from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import ModelInfo

from tests.cluster.api.scripted import MAX_MODEL_LEN, MODEL, Running
from tests.strict_types import parsed

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "Hello?"}


def good(route: str) -> dict[str, Any]:
    return {"model": MODEL, **({"messages": [USER]} if route == CHAT else {"prompt": "Hello?"})}


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("model", [{}, {"model": None}])
def test_without_a_model_the_one_that_is_served_answers(http: httpx.Client, route: str, model: dict[str, None]) -> None:
    response = http.post(route, json={name: value for name, value in good(route).items() if name != "model"} | model)
    assert (response.status_code, response.json()["model"]) == (200, MODEL)


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("model", ["other", "../x", "demo/model/", "DEMO/MODEL", "x" * (1 << 20), "a\x00b"])
def test_unknown_model(http: httpx.Client, route: str, model: str) -> None:
    response = http.post(route, json=good(route) | {"model": model})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert len(response.content) < 1000


@pytest.mark.parametrize("name", ["other", "../x", "", "%00"])
def test_unknown_model_by_url(http: httpx.Client, name: str) -> None:
    response = http.get(f"/v1/models/{name}")
    assert (response.status_code, response.json()["error"]["type"]) == (404, "invalid_request_error")


def test_anthropics_clients_get_their_form(server: Running, http: httpx.Client) -> None:
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        (listed,) = client.models.list(limit=5)
        assert listed == client.models.retrieve(MODEL)
        with pytest.raises(anthropic.NotFoundError) as unknown:
            client.models.retrieve("other", extra_headers={"x-request-id": "a-1"})
    assert isinstance(unknown.value.body, dict) and unknown.value.body["type"] == "error"
    assert unknown.value.body["error"]["type"] == "not_found_error"
    assert unknown.value.body["request_id"] == "a-1"
    assert (listed.id, listed.display_name, listed.max_input_tokens) == (MODEL, MODEL, MAX_MODEL_LEN)
    page = http.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert parsed(ModelInfo, page["data"][0]) == listed
    assert (page["first_id"], page["last_id"], page["has_more"]) == (MODEL, MODEL, False)
    assert http.get("/v1/models").json()["object"] == "list"
