"""Answers that are counted."""

import httpx
import pytest

from cluster.api.app import build
from cluster.api.edge.counting import KEY_CODES
from cluster.api.keys.key_ring import KeyRing
from cluster.api.models.model import Model, Models, ServedModel
from cluster.metrics.counters import Counters
from engine.errors import Overloaded
from tests.cluster.api.scripted import MODEL, Script, ScriptedService, listening, running


@pytest.mark.parametrize("count", [60, pytest.param(16_700, marks=pytest.mark.long)])
def test_labels_are_of_our_making_whatever_clients_invent(count):
    """Six requests each; the long form sends 100,000."""
    counters = Counters({})
    with running(counters=counters) as server, httpx.Client(base_url=server.url) as http:

        def ask(number: int) -> None:
            http.get(f"/invented/{number}")
            http.get(f"/v1/models/invented-{number}")
            http.get(f"/debug/why/{number}?{number}")
            http.request(("PATCH", "PROPFIND", "PUT")[number % 3], "/health")
            http.post("/v1/completions", json={"model": f"invented-{number}", "prompt": "x", f"field{number}": 1})
            http.post("/v1/completions", content=b"{" * (number % 1000), headers={f"x-{number}": "y"})

        for number in range(3):
            ask(number)
        known = set(counters.figures())
        for number in range(3, count):
            ask(number)
        figures = counters.figures()
    assert set(figures) == known
    assert figures["squadron:http_requests", (MODEL, "/v1/models/{model_id}", "GET", "404")] == count
    assert figures["squadron:http_requests", (MODEL, "other", "GET", "404")] == count
    assert figures["squadron:http_requests", (MODEL, "/health", "other", "405")] == count
    assert figures["squadron:refused_requests", (MODEL, "unknown_url")] == count
    assert figures["squadron:refused_requests", (MODEL, "invalid_api_key")] == 0


def test_clients_without_a_key_take_no_series_from_others():
    counters = Counters({})
    paths = ["/v1/models", "/v1/completions", "/v1/messages", "/debug/engines", "/metrics", "/tokenize", "/nothing"]
    with running(counters=counters, api_keys=KeyRing(["key"])) as server, httpx.Client(base_url=server.url) as http:
        for path in paths:
            for method in ("GET", "POST", "DELETE", "PATCH"):
                assert http.request(method, path).status_code == 401
                assert http.request(method, path, headers={"x-long": "x" * 70_000}).status_code == 431
        assert http.get("/v1/models", headers={"x-api-key": "key"}).status_code == 200
    answers = {labels for name, labels in counters.figures() if name == "squadron:http_requests"}
    refused = {
        (MODEL, "other", method, status) for method in ("GET", "POST", "DELETE", "other") for status in ("401", "431")
    }
    foreseen = {(MODEL, "other", "POST", "503")}  # by HAProxy
    assert answers == refused | foreseen | {(MODEL, "/v1/models", "GET", "200")}


def test_what_a_key_is_refused_counts_for_it(tmp_path):
    """One series for each reason that a client may wait for, from 0 on, and one for all others."""
    counters = Counters({})
    file = tmp_path / "keys.yaml"
    file.write_text("keys: [{name: one, key: a, requests_per_minute: 3}, {name: two, key: b}]")
    with running(counters=counters, api_keys=KeyRing(file=str(file))) as server:
        server.service.scripts["x"] = Script(texts=[], error=Overloaded("full"))
        for key, body in [("a", {"prompt": "y"}), ("a", {}), ("a", {"prompt": "x"}), ("a", {}), ("c", {})]:
            httpx.post(f"{server.url}/v1/completions", json=body, headers={"x-api-key": key})
    told = {
        labels: value for (name, labels), value in counters.figures().items() if name == "squadron:key_refused_requests"
    }
    assert told == {
        (MODEL, "one", "rate_limit_exceeded"): 1,
        (MODEL, "one", "server_overloaded"): 1,
        (MODEL, "one", "engine_restarting"): 0,
        (MODEL, "one", "other"): 1,
        **{(MODEL, "two", code): 0 for code in KEY_CODES},
    }


def test_of_several_models_the_one_that_is_asked_for_is_named():
    counters, service = Counters({}), ScriptedService()
    served = [ServedModel(Model(name=name, max_model_len=64, vocab_size=1000), service) for name in ("one", "two")]
    with (
        listening(build(service, Models(served), counters=counters)) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        for model, prompt in (("two", "x"), ("none", "x"), ("two", "y")):
            service.scripts["y"] = Script(texts=[], error=Overloaded("full", limit="max_num_queued_tokens"))
            http.post("/v1/completions", json={"model": model, "prompt": prompt})
        http.get("/health")
    found = {series: value for series, value in counters.figures().items() if value}
    assert found == {
        ("squadron:http_requests", ("two", "/v1/completions", "POST", "200")): 1,
        ("squadron:http_requests", ("two", "/v1/completions", "POST", "503")): 1,
        ("squadron:http_requests", ("", "/v1/completions", "POST", "404")): 1,
        ("squadron:http_requests", ("", "/health", "GET", "200")): 1,
        ("squadron:refused_requests", ("two", "server_overloaded")): 1,
        ("vllm:admission_rejections", ("two", "max_num_queued_tokens")): 1,
        ("squadron:refused_requests", ("", "model_not_found")): 1,
    }
