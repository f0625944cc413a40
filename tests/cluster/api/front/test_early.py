"""Refusals before the application is asked, by real connections."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.api.app import build
from cluster.api.front.gateway_connection import GatewayConnection
from cluster.api.keys.key_ring import KeyRing
from cluster.api.models.model import Model, Models
from cluster.api.options import HttpOptions
from cluster.api.responses.resuming.streams import StreamStore
from cluster.headers.full_queue import LATEST, LET_IN, PATHS, REFUSED, RESUMABLE, ROOM, WAIT, room_headers
from cluster.metrics.counters import Counters
from engine.admission.queue_limits import Room
from tests.cluster.api.responses.resuming.test_resume import Streams
from tests.cluster.api.scripted import MODEL, ScriptedService, listening

BODY = {"model": MODEL, "prompt": "x" * 400}
ROUTE = "/v1/completions"
PAGE = "http://a.example"


class Asked:
    """The application, and how often it was asked."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.num = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.num += 1
        await self._app(scope, receive, send)


class Server:
    """One whose queue is full, behind a gateway's connections."""

    def __init__(self, options: HttpOptions, streams: StreamStore | None = None) -> None:
        self.service = ScriptedService()
        self.service.is_full = True
        self.counters = Counters({})
        model = Model(name=MODEL, max_model_len=64, vocab_size=1000)
        models = Models.one(self.service, model)
        app = build(self.service, models, options, counters=self.counters, streams=streams)
        self.app = Asked(app)
        self.connection = type("Connection", (GatewayConnection,), {"refusals": app.state.early})


@pytest.fixture
def options() -> HttpOptions:
    return HttpOptions()


@pytest.fixture
def streams() -> StreamStore | None:
    return None


@pytest.fixture
def server(options: HttpOptions, streams: StreamStore | None) -> Server:
    return Server(options, streams)


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with (
        listening(server.app, http=server.connection) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        yield client


def test_the_application_is_not_asked(server: Server, http: httpx.Client) -> None:
    answers = [http.post(ROUTE, json=BODY), http.post("/v1/chat/completions", json=BODY)]
    for answer in answers:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_overloaded")
        assert 7 <= int(answer.headers["retry-after"]) <= 14
    assert server.app.num == 0
    figures = server.counters.figures()
    assert figures["squadron:refused_requests", (MODEL, "server_overloaded")] == 2
    assert figures["vllm:admission_rejections", (MODEL, "max_num_queued_reqs")] == 2
    assert figures[("squadron:http_requests", (MODEL, ROUTE, "POST", "503"))] == 1


@pytest.mark.parametrize("options", [HttpOptions(), HttpOptions(allowed_origins=(PAGE,))], ids=["closed", "open"])
@pytest.mark.parametrize("origin", ["http://a.example", "http://b.example"])
def test_a_refusal_is_as_the_applications_own(server: Server, http: httpx.Client, origin: str) -> None:
    """Also what a browser tells a page of it."""
    headers = {"X-Request-Id": "mine", "Origin": origin}
    early = http.post(ROUTE, json=BODY, headers=headers)
    assert server.app.num == 0
    with listening(server.app) as port:
        late = httpx.post(f"http://127.0.0.1:{port}{ROUTE}", json=BODY, headers=headers)
    assert server.app.num == 1
    assert early.json() == late.json()
    assert early.headers["x-request-id"] == "mine"
    assert early.headers.keys() - {"x-request-id"} == late.headers.keys()
    for name in ("access-control-allow-origin", "access-control-expose-headers", "vary"):
        assert early.headers.get(name) == late.headers.get(name)


def test_a_request_that_cannot_make_it_is_refused_at_once(server: Server, http: httpx.Client) -> None:
    server.service.is_full, server.service.queue_seconds = False, 5.0
    told = {}
    for text in ("4", "5", "soon"):
        answer = http.post(ROUTE, json=BODY, headers={"X-Request-Timeout": text})
        told[text] = answer.status_code, server.app.num
    assert told == {"4": (503, 0), "5": (200, 1), "soon": (400, 2)}
    assert server.counters.figures()["vllm:admission_rejections", (MODEL, "timeout")] == 1


def test_haproxy_is_told_the_room_while_there_is_little(server: Server, http: httpx.Client) -> None:
    told = []
    said = ((False, None), (False, Room(30, 2.0)), (True, Room(0, 7.0)), (False, None), (False, None))
    for number, (server.service.is_full, server.service.told_room) in enumerate(said, 1):
        answer = http.post(ROUTE, json=BODY, headers={LET_IN: f"7.{number}"})
        assert answer.status_code == (503 if server.service.is_full else 200)
        told.append({name: answer.headers[name] for name in (LATEST, ROOM, WAIT) if name in answer.headers})
    rooms = {2: Room(30, 2.0), 3: Room(0, 7.0), 4: None}
    low = [room_headers(room, number, resumes=False, has_pages=False) for number, room in rooms.items()]
    assert told == [{}, *({name: each[name] for name in (LATEST, ROOM, WAIT)} for each in low), {}]


def test_what_haproxy_refuses_is_counted_by_the_limit_that_left_no_room(server: Server, http: httpx.Client) -> None:
    server.service.is_full, server.service.told_room = False, Room(0, 7.0, "max_queue_seconds")
    for num_refused in ("0", "9"):
        assert http.post(ROUTE, json=BODY, headers={REFUSED: num_refused}).status_code == 200
    figures = server.counters.figures()
    limits = ("max_num_queued_reqs", "max_queue_seconds")
    assert [figures["vllm:admission_rejections", (MODEL, limit)] for limit in limits] == [0, 9]


def test_what_is_let_in_is_asked_for_room_once_more_when_it_is_read(server: Server, http: httpx.Client) -> None:
    server.service.is_full = False
    assert http.post(ROUTE, json=BODY).status_code == 200
    assert server.service.let_in == [False, True]


def test_the_connection_goes_on(server: Server, http: httpx.Client) -> None:
    """Also after a body that nobody has read."""
    assert http.post(ROUTE, content=b"x" * 1_000_000).status_code == 503
    server.service.is_full = False
    assert http.post(ROUTE, json=BODY).status_code == 200
    assert server.app.num == 1


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/v1/models", {}),
        ("GET", ROUTE, {}),
        ("POST", "/v1/nothing", {}),
    ],
)
def test_what_is_left_to_the_application(
    server: Server, http: httpx.Client, method: str, path: str, headers: dict[str, str]
) -> None:
    http.request(method, path, json=BODY if method == "POST" else None, headers=headers)
    assert server.app.num == 1


@pytest.mark.parametrize("headers", [{"Origin": PAGE}, {"Last-Event-ID": "cmpl-1:2"}], ids=["page", "event"])
def test_no_header_opens_a_full_queue(server: Server, http: httpx.Client, headers: dict[str, str]) -> None:
    answers = [http.post(path, json=BODY, headers=headers) for path in PATHS]
    assert {answer.status_code for answer in answers} == {503}
    assert server.app.num == 0 and server.service.let_in == [False] * len(PATHS)


class TestWithStreams:
    """Whether such a stream broke, the application knows."""

    @pytest.fixture
    def streams(self) -> Streams:
        return Streams()

    @pytest.mark.parametrize("path", PATHS)
    def test_those_that_broke_are_left_to_the_application(self, server: Server, http: httpx.Client, path: str) -> None:
        answer = http.post(path, json=BODY, headers={"Last-Event-ID": "cmpl-1:2"})
        is_resumable = path in RESUMABLE
        assert (answer.status_code, server.app.num) == ((404, 1) if is_resumable else (503, 0))
        assert server.service.generated == []
        assert True not in server.service.let_in


class TestWithKeys:
    @pytest.fixture
    def options(self, tmp_path: Path) -> HttpOptions:
        file = tmp_path / "keys.json"
        keys = [{"name": "limited", "key": "limited", "requests_per_minute": 1}]
        keys += [{"name": name, "key": name} for name in ("greedy", "modest")]
        file.write_text(json.dumps({"keys": keys}))
        return HttpOptions(api_keys=KeyRing(file=str(file)), allowed_hosts=("127.0.0.1",))

    @pytest.mark.parametrize(
        ("headers", "status"),
        [({}, 401), ({"authorization": "Bearer wrong"}, 401), ({"host": "evil.example"}, 403)],
    )
    def test_a_stranger_is_not_told_that_the_server_is_full(
        self, http: httpx.Client, headers: dict[str, Any], status: int
    ) -> None:
        assert http.post(ROUTE, json=BODY, headers=headers).status_code == status

    def test_requests_count_for_their_key_wherever_they_are_refused(self, server: Server, http: httpx.Client) -> None:
        key = {"authorization": "Bearer limited"}
        refused = http.post(ROUTE, json=BODY, headers=key)
        assert (refused.status_code, refused.headers["x-ratelimit-remaining-requests"]) == (503, "0")
        server.service.is_full = False
        assert http.post(ROUTE, json=BODY, headers=key).status_code == 429

    def test_a_key_that_fills_its_part_is_refused_and_another_is_not(self, server: Server, http: httpx.Client) -> None:
        server.service.is_full = False
        server.service.full_of = "greedy"
        told = []
        for key, room in (("greedy", Room(5, 2.0)), ("modest", Room(0.5, 2.0)), ("modest", Room(0, 2.0))):
            server.service.told_room = room
            answer = http.post(ROUTE, json=BODY, headers={"x-api-key": key})
            told.append((answer.status_code, answer.headers.get(ROOM)))
        assert told == [(429, None), (200, None), (200, "0")]
        assert server.app.num == 2
