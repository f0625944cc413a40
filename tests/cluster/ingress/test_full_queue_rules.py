"""A real HAProxy before a gateway that is full."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from cluster.api.errors import ApiError, error_body
from cluster.headers.full_queue import ANY_ROOM, LATEST, LET_IN, PAGES, PATHS, REFUSED, RESUMABLE, RESUMES, ROOM, WAIT
from cluster.ingress.full_queue_rules import FULL
from cluster.sockets import LOOPBACK
from tests.cluster.api.scripted import listening
from tests.cluster.ingress.haproxies import SECONDS, running


class Full:
    """A gateway that refuses all, or none, and says how many HAProxy may let in."""

    def __init__(self, room: int, *, resumes: bool = False, has_pages: bool = False) -> None:
        self.last_seen = ANY_ROOM  # numbers after it count as on their way
        self.told = {LATEST: "0", ROOM: str(room), WAIT: "8", RESUMES: str(int(resumes)), PAGES: str(int(has_pages))}
        self.asked: list[dict[str, str]] = []  # headers
        self.is_full = True
        self.answers = threading.Event()
        self.answers.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if request.method == "POST":
            self.asked.append(dict(request.headers))
            await asyncio.to_thread(self.answers.wait, SECONDS)
            numbers = [int(headers[LET_IN].partition(".")[2]) for headers in self.asked if LET_IN in headers]
            self.told[LATEST] = str(min(max(numbers, default=0), self.last_seen))
        is_full = self.is_full and request.url.path != "/-/healthz"
        answer = JSONResponse({}, 503 if is_full else 200, headers=self.told)
        await answer(scope, receive, send)


@contextmanager
def before(full: Full, folder: Path) -> Iterator[httpx.Client]:
    with (
        listening(full) as port,
        running(folder, [port]) as haproxy,
        httpx.Client(base_url=f"http://{LOOPBACK}:{haproxy.port}", timeout=SECONDS) as client,
    ):
        yield client


def test_without_room_haproxy_refuses_by_itself(tmp_path: Path) -> None:
    full = Full(0)
    with before(full, tmp_path) as http:
        refused = {path: http.post(path, json={}) for path in PATHS}
        asked = len(PATHS)
        while path := next((path for path in PATHS if refused[path].json() == {}), None):  # by the gateway
            refused[path] = http.post(path, json={})
            asked += 1
        full.is_full = False
        while http.post(PATHS[0], json={}, headers={REFUSED: "9"}).status_code == 503:  # for TOLD_MS
            asked += 1
    assert asked > len(full.asked) - 1
    assert sum(int(headers.get(REFUSED, 0)) for headers in full.asked) == asked - len(full.asked) + 1
    for path, answer in refused.items():
        assert (answer.status_code, answer.headers["content-type"]) == (503, "application/json")
        assert 8 <= int(answer.headers["retry-after"]) <= 16
        assert answer.json() == refusal_at(path)


def test_haproxy_lets_in_as_many_as_have_room(tmp_path: Path) -> None:
    """Until an answer tells it more."""
    room, num_asked = 3, 10
    full = Full(room)
    full.is_full = False
    with before(full, tmp_path) as http, ThreadPoolExecutor(num_asked) as pool:
        http.post(PATHS[0])
        full.answers.clear()
        asked = [pool.submit(http.post, PATHS[0]) for _ in range(num_asked)]
        try:
            refused = [each.result().status_code for each in islice(as_completed(asked), num_asked - room)]
        finally:
            full.answers.set()
        assert refused == [503] * (num_asked - room)
        assert sorted(each.result().status_code for each in asked) == [200] * room + refused
        assert http.post(PATHS[0]).status_code == 200, "the answers have told of room again"


def test_what_is_on_its_way_takes_room(tmp_path: Path) -> None:
    """An answer that knows of fewer requests than HAProxy has let in makes room for no more."""
    room, num_asked = 3, 10
    full = Full(room)
    full.is_full = False
    with before(full, tmp_path) as http, ThreadPoolExecutor(num_asked) as pool:
        http.post(PATHS[0])  # the first
        full.last_seen = 1
        full.answers.clear()
        asked = [pool.submit(http.post, PATHS[0]) for _ in range(num_asked)]
        for each in islice(as_completed(asked), num_asked - room):
            assert each.result().status_code == 503
        full.answers.set()
        assert sum(each.result().status_code == 200 for each in asked) == room
        assert http.post(PATHS[0]).status_code == 503, "the answers knew of the first request alone"


def test_the_latest_number_that_any_gateway_tells_counts(tmp_path: Path) -> None:
    """One that gets no more requests goes on to answer those that it has."""
    room = 3
    full = Full(room)
    full.is_full = False
    with before(full, tmp_path) as http:
        for _ in range(5):
            assert http.post(PATHS[0]).status_code == 200
        full.last_seen = 1
        told = [http.post(PATHS[0]).status_code for _ in range(room + 1)]
    assert told == [200] * room + [503]


def test_no_client_numbers_its_requests(tmp_path: Path) -> None:
    full = Full(3)
    with before(full, tmp_path) as http:
        for path in (PATHS[0], f"/other{PATHS[0]}", PATHS[0]):
            http.post(path, headers={LET_IN: "1.1000"})
    first, second = (headers[LET_IN].split(".") for headers in full.asked if LET_IN in headers)
    assert (first[0], first[1], second[1]) == (second[0], "1", "2")


EVENT, PAGE = {"last-event-id": "1"}, {"origin": "http://a.example"}


def told_by(full: Full, folder: Path, asked: list[tuple[str, dict[str, str]]]) -> list[httpx.Response]:
    """The answers, once HAProxy refuses."""
    with before(full, folder) as http:
        while http.post(PATHS[0]).json() == {}:
            pass
        return [http.post(path, headers=headers) for path, headers in asked]


@pytest.mark.parametrize("resumes", [False, True])
def test_haproxy_lets_in_what_gateways_look_at_first(tmp_path: Path, *, resumes: bool) -> None:
    """Streams that broke, if there may be any, and what is never refused."""
    full = Full(0, resumes=resumes)
    asked = [*((path, EVENT) for path in PATHS), *((path, EVENT | PAGE) for path in PATHS), ("/tokenize", {})]
    for (path, _), answer in zip(asked, told_by(full, tmp_path, asked), strict=True):
        is_let_in = path == "/tokenize" or (resumes and path in RESUMABLE)
        assert (answer.status_code, answer.json() == {}) == (503, is_let_in)
        assert not full.told.keys() & answer.headers.keys()


def refusal_at(path: str) -> object:
    """As the gateway would refuse."""
    return json.loads(error_body(ApiError(503, FULL.message, code=FULL.code), {"path": path, "headers": []}))


@pytest.mark.parametrize("has_pages", [False, True])
def test_haproxy_refuses_pages_in_a_way_that_they_may_read(tmp_path: Path, *, has_pages: bool) -> None:
    asked = [(path, headers) for path in PATHS for headers in (PAGE, {})]
    answers = told_by(Full(0, has_pages=has_pages), tmp_path, asked)
    for (path, headers), answer in zip(asked, answers, strict=True):
        assert answer.json() == refusal_at(path)
        assert 8 <= int(answer.headers["retry-after"]) <= 16
        allowed = [answer.headers.get(f"access-control-{what}") for what in ("allow-origin", "expose-headers")]
        assert allowed == (["*", "retry-after"] if has_pages and headers else [None, None])


def test_one_application_does_not_close_another(tmp_path: Path) -> None:
    with before(Full(0), tmp_path) as http:
        answers = [http.post(path).json() for path in (f"/other{PATHS[0]}", PATHS[0])]
    assert answers == [{}, {}], "both asked the gateway"
