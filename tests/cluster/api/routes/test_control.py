"""Engines pause and sleep at a client's wish, where that is enabled and its key may."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from cluster.api.app import build
from cluster.api.keys.key_ring import KeyRing
from cluster.api.models.model import Model, Models, ServedModel
from cluster.api.options import HttpOptions
from tests.cluster.api.scripted import ScriptedService


class Controller:
    """Of engines that do what they are told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    async def control(self, what: str, *arguments: Any) -> None:
        self.told.append((what, *arguments))

    async def state(self) -> dict[str, bool]:
        return {"is_paused": ("pause", "keep") in self.told, "is_sleeping": False}


def client_of(options: HttpOptions, *controllers: Controller) -> TestClient:
    service: Any = ScriptedService()
    served = [
        ServedModel(Model(name=f"model-{number}", max_model_len=64, vocab_size=100), service, None, controller)
        for number, controller in enumerate(controllers)
    ]
    app = build(service, Models(served), options)
    return TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 1))


def test_what_engines_are_told() -> None:
    first, second = Controller(), Controller()
    client = client_of(HttpOptions(enable_sleep_mode=True), first, second)
    for path, told in [
        ("/sleep", ("sleep", 1, "abort")),
        ("/sleep?level=2&mode=wait", ("sleep", 2, "wait")),
        ("/wake_up", ("wake_up", ("weights", "kv_cache"))),
        ("/wake_up?tags=weights", ("wake_up", ("weights",))),
        ("/pause?mode=keep", ("pause", "keep")),
        ("/resume", ("resume",)),
    ]:
        assert client.post(path).status_code == 200
        assert (first.told[-1], second.told[-1]) == (told, told)
    assert client.get("/is_paused").json() == {"is_paused": True}
    assert client.get("/is_sleeping").json() == {"is_sleeping": False}
    client.post("/pause?mode=wait&model=model-1")
    assert (first.told[-1], second.told[-1]) == (("resume",), ("pause", "wait"))
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/sleep", "/wake_up", "/pause", "/resume", "/is_sleeping", "/is_paused"} <= paths.keys()


def test_a_model_that_has_no_engine_yet_is_not_passed_over() -> None:
    """The others do it, and the caller learns that one has not."""
    service: Any = ScriptedService()
    second, first = Controller(), Controller()
    models = Models(names=["first", "second"])

    def join(name: str, controller: Controller) -> None:
        models.add(ServedModel(Model(name=name, max_model_len=64, vocab_size=100), service, None, controller))

    join("second", second)
    app = build(service, models, HttpOptions(enable_sleep_mode=True))
    client = TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 1))
    for path in ("/pause?mode=keep", "/pause?mode=keep&model=first"):
        answer = client.post(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
        assert answer.json()["error"]["message"] == "The model first has no engine yet"
    assert second.told == [("pause", "keep")]
    assert client.get("/is_paused").json() == {"is_paused": True}
    assert client.get("/is_paused?model=first").status_code == 503
    join("first", first)
    assert client.post("/pause?mode=keep").status_code == 200
    assert first.told == [("pause", "keep")]


@pytest.mark.parametrize(
    ("path", "status", "param"),
    [
        ("/sleep?level=0", 400, "level"),
        ("/sleep?level=1&mode=later", 400, "mode"),
        ("/wake_up?tags=all", 400, "tags"),
        ("/pause?model=x", 404, "model"),
    ],
)
def test_what_is_refused(path: str, status: int, param: str) -> None:
    controller = Controller()
    answer = client_of(HttpOptions(enable_sleep_mode=True), controller).post(path)
    assert (answer.status_code, answer.json()["error"]["param"], controller.told) == (status, param, [])


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:3000", "http://127.0.0.1.evil.example"]
)
def test_pages_of_others_may_not_have_a_browser_do_it(origin: str) -> None:
    controller = Controller()
    client = client_of(HttpOptions(enable_sleep_mode=True), controller)
    for form in ({}, {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}):
        answer = client.post("/sleep?level=2", headers={"origin": origin} | form)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")
    assert controller.told == []
    assert client.get("/is_paused", headers={"origin": origin}).status_code == 200, "which its page cannot read"


@pytest.mark.parametrize("origin", ["http://127.0.0.1", "https://trainer.example.com"])
def test_pages_that_are_named_and_the_servers_own_may(origin: str) -> None:
    controller = Controller()
    options = HttpOptions(enable_sleep_mode=True, allowed_origins=("https://trainer.example.com",))
    assert client_of(options, controller).post("/resume", headers={"origin": origin}).status_code == 200
    assert controller.told == [("resume",)]


def test_the_routes_do_not_exist_by_default() -> None:
    controller = Controller()
    assert client_of(HttpOptions(), controller).post("/sleep").status_code == 404
    assert controller.told == []


def test_a_key_needs_its_permission(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("keys: [{name: trainer, key: one, controls_engines: true}, {name: client, key: two}]")
    options = HttpOptions(enable_sleep_mode=True, api_keys=KeyRing(file=str(file)))
    client = client_of(options, Controller())
    codes = [client.post("/pause", headers={"authorization": f"Bearer {key}"}).status_code for key in ("one", "two")]
    assert codes == [200, 403]


def test_without_keys_only_this_machine_may() -> None:
    client = client_of(HttpOptions(enable_sleep_mode=True), Controller())
    assert client.post("/pause", headers={"x-forwarded-for": "192.0.2.1"}).json()["error"]["code"] == (
        "key_or_loopback_needed"
    )
