"""A flood on a server whose queue is full: it is refused before anything of a body is looked at, by
HAProxy or by the gateway, and no header changes that.
"""

import contextlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cluster.ingress.full_queue_rules import FULL
from tests.end_to_end.commands import serve
from tests.end_to_end.conftest import LOOPBACK, free_port
from tests.end_to_end.test_replica_lost import wait_until

SECONDS = 120.0
ROUTE = "/v1/completions"
BODY = json.dumps({"prompt": "once", "max_tokens": 1})
NO_JSON = b"{"  # whoever reads it answers 400
# One place, and room for one that waits; and a pause, in which neither is answered.
OPTIONS = ("--max-num-seqs", "1", "--max-num-queued-reqs", "1", "--enable-sleep-mode")
JSON = {"Content-Type": "application/json"}
HEADERS: list[dict[str, str]] = [{}, {"Origin": "http://a.example"}, {"Last-Event-ID": "cmpl-1:2"}]
NUM_ASKED = 50  # by each


@pytest.fixture(params=["haproxy", pytest.param("proxy", marks=pytest.mark.long)])
def ingress(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def full(tmp_path: Path, ingress: str) -> Iterator[httpx.Client]:
    port = free_port()
    with (
        serve(tmp_path, port, *OPTIONS, "--ingress", ingress) as command,
        httpx.Client(base_url=f"http://{LOOPBACK}:{port}", timeout=SECONDS) as client,
        contextlib.ExitStack() as asked,
    ):
        command.wait_until_ready()
        assert client.post("/pause").status_code == 200
        for _ in range(2):
            connection = http.client.HTTPConnection(LOOPBACK, port, timeout=SECONDS)
            asked.callback(connection.close)
            connection.request("POST", ROUTE, BODY, JSON)
        wait_until(lambda: client.post(ROUTE, content=NO_JSON).status_code == 503, "it has room")
        yield client


def test_no_header_opens_a_full_queue(full: httpx.Client, ingress: str) -> None:
    for headers in HEADERS:
        answers = [full.post(ROUTE, content=NO_JSON, headers=JSON | headers) for _ in range(NUM_ASKED)]
        told = {(answer.status_code, answer.json()["error"]["code"]) for answer in answers}
        assert told == {(503, "server_overloaded")}, headers
        messages = {answer.json()["error"]["message"] for answer in answers}
        assert (FULL.message in messages) == (ingress == "haproxy"), headers
