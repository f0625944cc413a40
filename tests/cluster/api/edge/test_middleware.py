"""Keys, headers, and the routes that say how the server is."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from cluster.api.app import build
from cluster.api.batches import FileObject, Owner
from cluster.api.edge.middleware import Edge
from cluster.api.errors import ApiError
from cluster.api.keys.key_ring import KeyRing
from cluster.api.models.adapters import ADAPTER_PATHS
from cluster.api.models.controls import CONTROL_PATHS
from cluster.api.models.model import Model, Models, ServedModel
from cluster.api.options import HttpOptions
from cluster.api.service import KILL_PATH
from cluster.version import VERSION
from tests.cluster.api.scripted import MODEL, Running, ScriptedService, listening, running

KEYS = ("sk-one", "sk-zwö")
PATHS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/models"),
    ("GET", f"/v1/models/{MODEL}"),
    ("GET", "/version"),
    ("GET", "/openapi.json"),
    ("GET", "/nowhere"),
    ("GET", "/health/"),
    ("GET", "/%2Fhealth"),
]


OPEN = {"/health", "/ping", "/", "/page/main.js"}
PLACES = {"file": "main.js"} | dict.fromkeys(
    ("model_id", "request_id", "response_id", "file_id", "batch_id"), "unknown"
)  # in paths


class Nothing:
    """`Batches` without any, a `Controller` whose engines are awake, an `AdapterLoader` and a
    `WorkerKiller`, none of which has anything to do.
    """

    def files(self, owner: Owner) -> list[FileObject]:
        return []

    batches = files

    def file(self, owner: Owner, name: str) -> None:
        raise ApiError(404, "There is none", code="not_found")

    delete_file = batch = cancel = file

    async def control(self, what: str, *arguments: Any) -> None:
        """It is so already."""

    async def state(self) -> dict[str, bool]:
        return {"is_paused": False, "is_sleeping": False}

    async def kill_worker(self) -> dict[str, Any]:
        return {}


def whole(options: HttpOptions) -> FastAPI:
    """The application with everything that a configuration can add to it."""
    service, nothing = ScriptedService(), Nothing()
    model = Model(name=MODEL, max_model_len=8, vocab_size=8)
    models = Models([ServedModel(model, service, nothing, nothing)], can_load=True)  # type: ignore[arg-type]
    options = replace(options, enable_sleep_mode=True)
    return build(service, models, options, batches=nothing, killer=nothing)  # type: ignore[arg-type]


def every_route() -> list[tuple[str, str]]:
    """All methods and paths of the application, open ones included."""
    routes = [route for route in whole(HttpOptions()).routes if isinstance(route, Route)]
    return sorted(
        (method, re.sub(r"{(\w+)(:path)?}", lambda place: PLACES[place[1]], route.path))
        for route in routes
        for method in route.methods or ()
    )


@pytest.fixture(scope="module")
def guarded() -> Iterator[httpx.Client]:
    with running(api_keys=KeyRing(KEYS)) as server, httpx.Client(base_url=server.url) as client:
        yield client


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Basic c2stb25lOg==")],
        [(b"authorization", b"sk-one")],
        [(b"authorization", b"Bearer sk-on")],
        [(b"authorization", b"Bearer sk-onee")],
        [(b"authorization", b"Bearer SK-ONE")],
        [(b"authorization", "Bearer sk-øne".encode())],
        [(b"authorization", b"Bearer \xff\xfe")],
        [(b"authorization", b"Bearer sk-one"), (b"authorization", b"Bearer sk-two")],
    ],
)
def test_no_key(guarded: httpx.Client, method: str, path: str, headers: list[tuple[bytes, bytes]]) -> None:
    response = guarded.request(method, path, headers=headers)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (401, "invalid_api_key", "authentication_error")
    assert response.headers["www-authenticate"] == "Bearer"
    assert "sk-" not in response.text


def test_there_are_all_routes() -> None:
    paths = {path for _, path in every_route()}
    assert paths > OPEN | set(CONTROL_PATHS) | set(ADAPTER_PATHS) | {KILL_PATH}
    assert paths > {"/v1/files", "/v1/files/unknown/content", "/v1/batches", "/v1/batches/unknown/cancel"}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server with every route there is, and a key that may use them all."""
    file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    keys = [{"name": "all", "key": "sk-one", "loads_adapters": True, "controls_engines": True}]
    file.write_text(json.dumps({"keys": keys}), encoding="utf-8")
    app = whole(HttpOptions(api_keys=KeyRing(file=str(file))))
    with listening(app) as port:
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, headers={"origin": url}) as client:  # as the server's own page
            yield client


@pytest.mark.parametrize(("method", "path"), every_route())
def test_every_route_but_those_that_are_open_needs_a_key(everything: httpx.Client, method: str, path: str) -> None:
    for bad in (None, b"", b"Bearer", b"Bearer wrong", "Bearer sk-ø".encode(), b"Bearer \xff\xfe", b"Basic sk-one"):
        headers = [] if bad is None else [(b"authorization", bad)]
        assert everything.request(method, path, headers=headers).status_code == (200 if path in OPEN else 401)
    good = everything.request(method, path, headers=[(b"authorization", b"Bearer sk-one")])
    assert good.status_code in (200, 404, 415), "which only the routes answer"


@pytest.mark.parametrize("authorization", [b"Bearer sk-one", b"bearer sk-one", "Bearer sk-zwö".encode()])
def test_key(guarded: httpx.Client, authorization: bytes) -> None:
    assert guarded.get("/v1/models", headers=[(b"authorization", authorization)]).status_code == 200


def test_health_is_open(guarded: httpx.Client) -> None:
    assert guarded.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize("name", ["authorization", "x-whatever"])
def test_headers_too_large(guarded: httpx.Client, name: str) -> None:
    response = guarded.get("/health", headers={name: "x" * (1 << 20)})
    assert (response.status_code, response.json()["error"]["code"]) == (431, "headers_too_large")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (b"a:B-1_.x", [b"a:B-1_.x"]),
        (b"host.example/AbC-000001", [b"host.example_AbC-000001"]),
        (b"|7ac1f.2_", [b"7ac1f.2_"]),
        (b"Root=1-67891233-abcdef012345678912345678", [b"Root=1-67891233-abcdef012345678912345678"]),
        (b"../../etc/passwd", [b"etc_passwd"]),
        (b"a\tb;c d", [b"a_b_c_d"]),
        ("ä1".encode(), [b"1"]),
        (b"\xff\xfe1", [b"1"]),
        (b"x" * 1000, [b"x" * 128]),
        (b"", []),
        (b"-_-", []),
    ],
)
async def test_a_request_id_is_kept_as_far_as_it_is_safe(given: bytes, kept: list[bytes]) -> None:
    seen: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend(value for name, value in scope["headers"] if name == b"x-request-id")
        assert (b"accept", b"*/*") in scope["headers"]

    headers = [(b"x-request-id", given), (b"accept", b"*/*")]
    scope = {"type": "http", "method": "GET", "path": "/health", "headers": headers}
    await Edge(app, api_keys=KeyRing())(scope, nothing, nothing)
    assert seen == kept
    assert scope["headers"] == headers


async def nothing(*_: object) -> None:
    """Neither receives nor sends."""


@pytest.mark.parametrize("value", [b"", b"host.example/AbC-000001", b"|7ac1f.2_", b"Root=1-5", b"\xff\xfe", b"x" * 999])
def test_no_request_id_fails_a_request(http: httpx.Client, value: bytes) -> None:
    assert http.get("/v1/models", headers=[(b"x-request-id", value)]).status_code == 200


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_anthropics_clients_find_the_requests_id(http: httpx.Client, path: str) -> None:
    body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}
    answered = http.post(path, json=body, headers={"x-request-id": "a b"})
    assert (answered.status_code, answered.headers["request-id"]) == (200, "a_b")
    refused = http.post(path, json={}, headers={"x-request-id": "c"})
    assert (refused.status_code, refused.headers["request-id"], refused.json()["request_id"]) == (400, "c", "c")
    assert "request-id" not in http.post("/v1/completions", json={}, headers={"x-request-id": "d"}).headers


def test_a_request_id_may_come_again(server: Running, http: httpx.Client) -> None:
    body = {"model": MODEL, "prompt": "a"}
    for _ in range(2):
        assert http.post("/v1/completions", json=body, headers={"x-request-id": "a:B-1_.x"}).status_code == 200
    first, second = server.service.generated
    assert first.id != second.id


def test_health(server: Running, http: httpx.Client) -> None:
    assert (http.get("/health").status_code, http.get("/health").json()) == (200, {"status": "ok"})
    server.service.problems += ["worker 1 lost", "replica 2 is starting"]
    response = http.get("/health")
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    assert response.json()["error"]["message"] == "worker 1 lost; replica 2 is starting"
    assert response.json()["error"]["code"] == "not_ready"


def test_deep_health_and_the_engines_reports_are_not_for_everybody(guarded: httpx.Client) -> None:
    assert guarded.get("/health/deep").status_code == 401
    assert guarded.get("/debug/engines").status_code == 401


@pytest.mark.parametrize(
    "path", [path for method, path in PATHS[:6] if method == "GET"] + ["/health", "/debug/engines"]
)
def test_head_is_get_without_a_body(server: Running, http: httpx.Client, path: str) -> None:
    by_get, by_head = http.get(path), http.head(path)
    assert (by_head.status_code, by_head.content) == (200, b"")
    assert by_head.headers["content-length"] == str(len(by_get.content))
    assert by_head.headers["content-type"] == by_get.headers["content-type"]


def test_head_of_what_takes_no_get(guarded: httpx.Client, http: httpx.Client) -> None:
    assert http.head("/v1/completions").status_code == 405
    assert http.head("/nowhere").status_code == 404
    assert guarded.head("/v1/models").status_code == 401


def test_version(http: httpx.Client) -> None:
    assert http.get("/version").json() == {"version": VERSION}
