"""A real HAProxy before a gateway that is full."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from cluster.api.errors import ApiError, error_body
from cluster.full_queue import FULL_MS, MAX_FULL_MS, PATHS, REFUSED, WAIT
from cluster.ingress.full_queue_rules import FULL
from cluster.sockets import LOOPBACK
from tests.cluster.api.scripted import listening
from tests.cluster.ingress.haproxies import SECONDS, running


class Full:
    """A gateway that refuses all, and says that HAProxy may refuse for `milliseconds`."""

    def __init__(self, milliseconds: int) -> None:
        self._headers = {FULL_MS: str(milliseconds), WAIT: "8"}
        self.asked: list[dict[str, str]] = []  # headers
        self.is_full = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        is_full = self.is_full and request.url.path != "/-/healthz"
        if request.method == "POST":
            self.asked.append(dict(request.headers))
        answer = JSONResponse({}, 503 if is_full else 200, headers=self._headers if is_full else {})
        await answer(scope, receive, send)


@contextmanager
def before(full: Full, folder: Path) -> Iterator[httpx.Client]:
    with (
        listening(full) as port,
        running(folder, [port]) as haproxy,
        httpx.Client(base_url=f"http://{LOOPBACK}:{haproxy.port}", timeout=SECONDS) as client,
    ):
        yield client


def test_while_nothing_has_room_haproxy_refuses_by_itself(tmp_path: Path) -> None:
    full = Full(MAX_FULL_MS)
    with before(full, tmp_path) as http:
        refused = {path: http.post(path, json={}) for path in PATHS}
        asked = len(PATHS)
        while path := next((path for path in PATHS if refused[path].json() == {}), None):  # by the gateway
            refused[path] = http.post(path, json={})
            asked += 1
        full.is_full = False
        while http.post(PATHS[0], json={}, headers={REFUSED: "9"}).status_code == 503:
            asked += 1
    assert asked > len(full.asked) - 1
    assert sum(int(headers.get(REFUSED, 0)) for headers in full.asked) == asked - len(full.asked) + 1
    for path, answer in refused.items():
        assert (answer.status_code, answer.headers["content-type"]) == (503, "application/json")
        assert 8 <= int(answer.headers["retry-after"]) <= 16
        assert answer.json() == json.loads(error_body(ApiError(503, FULL.message, code=FULL.code), path))


def test_haproxy_lets_in_what_gateways_look_at_first(tmp_path: Path) -> None:
    full = Full(MAX_FULL_MS)
    asked: list[tuple[str, dict[str, str]]] = [
        (PATHS[0], {"last-event-id": "1"}),
        (PATHS[0], {"origin": "x"}),
        ("/tokenize", {}),
    ]
    with before(full, tmp_path) as http:
        while http.post(PATHS[0]).json() == {}:  # until HAProxy refuses
            pass
        answers = [http.post(path, headers=headers) for path, headers in asked]
    for answer in answers:
        assert (answer.status_code, answer.json()) == (503, {})
        assert not {FULL_MS, WAIT} & answer.headers.keys()


def test_haproxy_refuses_for_no_longer_than_it_should(tmp_path: Path) -> None:
    """As if the clock were set back."""
    full = Full(MAX_FULL_MS + 1_000_000)
    with before(full, tmp_path) as http:
        assert [http.post(PATHS[0]).json() for _ in range(3)] == [{}] * 3
