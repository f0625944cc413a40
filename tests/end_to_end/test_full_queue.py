"""A flood on a server whose queue is full: it is refused before anything of a body is looked at, by
HAProxy (tests/end_to_end/test_ingress.py) or by the gateway, and no header changes that.
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


@contextlib.contextmanager
def full(port: int) -> Iterator[httpx.Client]:
    """The queue of a server with `OPTIONS`, which is paused meanwhile."""
    with httpx.Client(base_url=f"http://{LOOPBACK}:{port}", timeout=SECONDS) as client, contextlib.ExitStack() as asked:
        assert client.post("/pause").status_code == 200
        connections = [http.client.HTTPConnection(LOOPBACK, port, timeout=SECONDS) for _ in range(2)]
        for connection in connections:
            asked.callback(connection.close)
            connection.request("POST", ROUTE, BODY, JSON)
        wait_until(lambda: client.post(ROUTE, content=NO_JSON).status_code == 503, "it has room")
        yield client
        assert client.post("/resume").status_code == 200
        assert [connection.getresponse().status for connection in connections] == [200, 200]
        # HAProxy goes on to refuse for as long as it was told to.
        wait_until(lambda: client.post(ROUTE, content=NO_JSON).status_code != 503, "it has no room")


def check_that_no_header_opens(full: httpx.Client, *, is_haproxy: bool) -> None:
    for headers in HEADERS:
        answers = [full.post(ROUTE, content=NO_JSON, headers=JSON | headers) for _ in range(NUM_ASKED)]
        told = {(answer.status_code, answer.json()["error"]["code"]) for answer in answers}
        assert told == {(503, "server_overloaded")}, headers
        messages = {answer.json()["error"]["message"] for answer in answers}
        assert (FULL.message in messages) == is_haproxy, headers


@pytest.mark.long
def test_no_header_opens_a_full_queue_of_the_gateway(tmp_path: Path) -> None:
    with serve(tmp_path, free_port(), *OPTIONS, "--ingress", "proxy") as command:
        command.wait_until_ready()
        with full(command.port) as client:
            check_that_no_header_opens(client, is_haproxy=False)
