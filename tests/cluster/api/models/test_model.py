"""Several models behind one port: each request goes to the service of the model that it names."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from cluster.api.app import build
from cluster.api.errors import ApiError
from cluster.api.models.adapters import Adapters
from cluster.api.models.aliases import Alias
from cluster.api.models.model import Model, Models, ServedModel
from cluster.gateway.handle import handle
from engine.errors import Overloaded
from engine.request import Adapter
from tests.cluster.api.scripted import ScriptedService, listening

MESSAGES = [{"role": "user", "content": "text"}]


class Full(ScriptedService):
    def check_room(self, *_: object, **__: object) -> None:
        raise Overloaded("2 requests wait (max_num_queued_reqs)", retry_after=1.0)


def models_of(*services: ScriptedService) -> Models:
    """Named small, large, ...; small has an adapter."""
    served = [
        ServedModel(Model(name=name, max_model_len=length, vocab_size=1000), service)
        for name, length, service in zip(("small", "large"), (64, 128), services, strict=True)
    ]
    adapters = Adapters([Adapter("tone", "/adapters/tone", "ab", 8)])
    served[0] = served[0]._replace(model=Model(name="small", max_model_len=64, vocab_size=1000, adapters=adapters))
    return Models(served, {"gpt-4o": Alias((("large", 1.0),)), "either": Alias((("small", 0.5), ("large", 0.5)))})


@contextmanager
def running(application: ScriptedService, models: Models) -> Iterator[httpx.Client]:
    app = build(application, models)
    with listening(app) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        yield client


@pytest.fixture
def services() -> list[ScriptedService]:
    return [ScriptedService(), ScriptedService()]


@pytest.fixture
def client(services: list[ScriptedService]) -> Iterator[httpx.Client]:
    with running(services[0], models_of(*services)) as client:
        yield client


@pytest.mark.parametrize(
    ("name", "number", "told"),
    [("small", 0, "small"), ("large", 1, "large"), ("gpt-4o", 1, "large"), ("tone", 0, "tone"), (None, 0, "small")],
)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/completions", {"prompt": "text"}),
        ("/v1/responses", {"input": "text", "store": False}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 5}),
    ],
)
def test_the_model_that_is_named_answers(
    client: httpx.Client,
    services: list[ScriptedService],
    path: str,
    body: dict[str, object],
    name: str | None,
    number: int,
    told: str,
) -> None:
    answer = client.post(path, json=body if name is None else body | {"model": name})
    assert answer.status_code == 200 and answer.json()["model"] == told
    assert [len(service.generated) for service in services] == [int(number == 0), int(number == 1)]


def test_an_alias_of_two_divides_conversations(client: httpx.Client) -> None:
    bodies = [{"model": "either", "prompt": f"text {number}"} for number in range(40)]
    told = [client.post("/v1/completions", json=body).json()["model"] for body in bodies]
    assert set(told) == {"small", "large"}
    assert told == [client.post("/v1/completions", json=body).json()["model"] for body in bodies]


def test_the_context_is_that_of_the_model(client: httpx.Client) -> None:
    prompt = [1] * 100
    refused = client.post("/v1/completions", json={"model": "small", "prompt": prompt})
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert client.post("/v1/completions", json={"model": "large", "prompt": prompt}).status_code == 200


def test_lists_and_refuses_by_name(client: httpx.Client) -> None:
    cards = {card["id"]: card for card in client.get("/v1/models").json()["data"]}
    assert list(cards) == ["small", "tone", "large", "gpt-4o", "either"]
    assert (cards["either"]["root"], cards["either"]["max_model_len"]) == ("small, large", 64)
    assert client.get("/v1/models/gpt-4o").json()["root"] == "large"
    refused = client.post("/v1/completions", json={"model": "medium", "prompt": "text"})
    assert refused.status_code == 404 and refused.json()["error"]["code"] == "model_not_found"
    assert refused.json()["error"]["message"] == (
        'There is no model "medium" here; there are "small", "tone", "large", "gpt-4o", "either"'
    )


def test_a_full_model_refuses_and_the_other_answers() -> None:
    services = [Full(), ScriptedService()]
    with running(services[1], models_of(*services)) as client:
        refused = client.post("/v1/completions", json={"model": "small", "prompt": "text"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_overloaded")
        assert client.post("/v1/completions", json={"model": "large", "prompt": "text"}).status_code == 200


class Loader:
    """Remembers what it is told."""

    def __init__(self, adapters: list[str]) -> None:
        self.adapters = adapters

    async def load(self, name: str, path: str, *, in_place: bool) -> None:
        self.adapters.append(name)

    async def unload(self, name: str) -> None:
        if name not in self.adapters:
            raise ApiError(404, f"There is no adapter {name} here", code="adapter_not_found", param="lora_name")
        self.adapters.remove(name)


def test_adapters_are_loaded_for_the_model_that_is_named(services: list[ScriptedService]) -> None:
    small, large = Loader(["tone"]), Loader([])
    served = [each._replace(loader=loader) for each, loader in zip(models_of(*services), (small, large), strict=True)]
    with running(services[0], Models(served)) as client:

        def load(**fields: str) -> httpx.Response:
            return client.post("/v1/load_lora_adapter", json={"lora_path": "/adapters/sql"} | fields)

        assert load(lora_name="sql", model="large").status_code == 200
        assert (small.adapters, large.adapters) == (["tone"], ["sql"])
        unsaid = load(lora_name="new").json()["error"]
        assert unsaid["message"] == 'Several models take adapters: "small", "large"; set model to one of them'
        assert load(lora_name="new", model="medium").json()["error"]["code"] == "model_not_found"
        assert load(lora_name="tone", model="large").json()["error"]["message"] == '"tone" is the name of a model'
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": "sql"}).status_code == 200
        assert (small.adapters, large.adapters) == (["tone"], [])
        gone = client.post("/v1/unload_lora_adapter", json={"lora_name": "sql"})
        assert gone.json()["error"]["code"] == "adapter_not_found"

        def unload(**fields: str) -> httpx.Response:
            return client.post("/v1/unload_lora_adapter", json={"lora_name": "tone"} | fields)

        assert unload(model="large").json()["error"]["code"] == "adapter_not_found"
        assert unload(model="medium").json()["error"]["code"] == "model_not_found"
        assert small.adapters == ["tone"]
        assert unload(model="small").status_code == 200
        assert small.adapters == []


def test_a_model_without_an_engine_is_refused_until_it_has_one(services: list[ScriptedService]) -> None:
    there = {served.model.name: served for served in models_of(*services)}
    models = Models(names=list(there), aliases={"either": Alias((("large", 1.0), ("small", 1.0)))})
    models.add(there["large"])
    with running(services[1], models) as client:

        def ask(**fields: str) -> httpx.Response:
            return client.post("/v1/completions", json={"prompt": "text"} | fields)

        assert ask(model="large").json()["model"] == "large"
        for fields in ({"model": "small"}, {}):
            refused = ask(**fields)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
            assert refused.json()["error"]["message"] == "The model small has no engine yet"
            assert int(refused.headers["retry-after"]) >= 1
        assert client.get("/v1/models/small").json() == refused.json()
        assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["large", "either"]
        models.add(there["small"])
        assert ask().json()["model"] == "small"
        assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["small", "tone", "large", "either"]


async def test_by_handle(services: list[ScriptedService]) -> None:
    answer = await handle.generate(models_of(*services), {"model": "gpt-4o", "prompt": "text"})
    assert answer["error"] is None
    assert [len(service.generated) for service in services] == [0, 1]


def test_an_adapter_of_a_model_that_has_no_engine_yet_is_known(services: list[ScriptedService]) -> None:
    """Its requests may come again, and nobody may take its name."""
    loader = Loader(["tone"])
    small = next(iter(models_of(*services)))._replace(loader=loader)
    models = Models([small], names=["small", "large"], adapters={"tone": "small", "sql": "large"})
    with running(services[0], models) as client:
        waits = client.post("/v1/completions", json={"model": "sql", "prompt": "text"})
        assert (waits.status_code, waits.json()["error"]["code"]) == (503, "not_ready")
        assert waits.headers["Retry-After"] == "5"
        assert client.get("/v1/models/sql").json() == waits.json()
        assert client.post("/v1/completions", json={"model": "tone", "prompt": "text"}).status_code == 200
        taken = client.post("/v1/load_lora_adapter", json={"lora_path": "/adapters/sql", "lora_name": "sql"})
        assert taken.json()["error"]["message"] == '"sql" is the name of a model'
        assert loader.adapters == ["tone"]
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": "sql"}).status_code == 503
