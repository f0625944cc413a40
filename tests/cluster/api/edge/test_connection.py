"""Connections that say nothing, or half of what they want, and offers of other protocols; with
sockets, and with curl.
"""

import json
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import httpx
import pytest

from cluster.api.edge.connection import Connection
from cluster.api.keys.key_ring import KeyRing
from tests.cluster.api.scripted import MODEL, Running, Script, running

BODY = json.dumps({"model": MODEL, "prompt": "a"}).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
LENGTH = b"content-length: %d\r\n" % len(BODY)
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
WEBSOCKET = (
    b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n"
)
WAIT = 60.0  # seconds; for an answer that should come at once


class Impatient(Connection):
    head_seconds = 1.0


@pytest.fixture(scope="module")
def patient() -> Iterator[Running]:
    with running(http=Connection) as server:
        yield server


@pytest.fixture(scope="module")
def impatient() -> Iterator[Running]:
    with running(http=Impatient, api_keys=KeyRing(["key"])) as server:
        yield server


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=WAIT)


def read_to_the_end(connection: socket.socket) -> bytes:
    received = b""
    try:
        while chunk := connection.recv(1 << 16):
            received += chunk
    except ConnectionResetError:
        pass  # it ended with bytes of ours unread
    return received


def answer(connection: socket.socket) -> tuple[int, dict[str, object]]:
    """Of a connection that says `connection: close`."""
    head, _, body = read_to_the_end(connection).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize("offer", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
@pytest.mark.parametrize("in_parts", [False, True])
def test_an_offer_of_another_protocol_is_ignored(patient: Running, offer: bytes, in_parts: bool) -> None:
    """And what comes behind the request is a request again."""
    request = HEAD + offer + LENGTH + b"\r\n" + BODY
    last = b"GET /version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    with connect(patient) as connection:
        if in_parts:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for part in (request[:50], request[50:-10], request[-10:], last):
                connection.sendall(part)
        else:
            connection.sendall(request + request + last)
        received = read_to_the_end(connection)
    assert received.count(b"HTTP/1.1 200 OK") == (2 if in_parts else 3)
    assert received.count(b'"text_completion"') == (1 if in_parts else 2)
    assert b'"version"' in received.rpartition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("offer", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
def test_an_offer_needs_the_key(impatient: Running, offer: bytes) -> None:
    with connect(impatient) as connection:
        connection.sendall(HEAD + offer + LENGTH + b"\r\n" + BODY)
        assert connection.recv(12) == b"HTTP/1.1 401"


def test_chunks_behind_an_offer(patient: Running) -> None:
    with connect(patient) as connection:
        connection.sendall(HEAD + H2C + b"Transfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))
        assert connection.recv(15) == b"HTTP/1.1 200 OK"


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_curl_that_offers_http_2(patient: Running) -> None:
    url = f"{patient.url}/v1/completions"
    command = ["curl", "--silent", "--show-error", "--max-time", "60", "--http2", url]
    done = subprocess.run(
        [*command, "--json", BODY.decode()], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
    )
    if "HTTP/2" in done.stderr:
        pytest.skip(done.stderr)
    assert json.loads(done.stdout)["object"] == "text_completion", done.stderr


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"GET / HTTP/1.1\r\nhost: ", 408, "request_timeout"),
        (HEAD + H2C, 408, "request_timeout"),
        (b"\x16\x03\x01\x02\x00\x01", 400, "invalid_http"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "invalid_http"),
        (b"CONNECT example.com:80 HTTP/1.1\r\nhost: example.com\r\n\r\n", 405, "method_not_supported"),
        (b"GET / HTTP/1.1\r\nhost : x\r\n\r\n", 400, "invalid_http"),
    ],
)
def test_what_is_no_request(impatient: Running, sent: bytes, status: int, code: str) -> None:
    with connect(impatient) as connection:
        connection.sendall(sent)
        received, body = answer(connection)
    assert (received, body["error"]["code"]) == (status, code)  # type: ignore[index]


def test_a_silent_connection_ends(impatient: Running) -> None:
    with connect(impatient) as connection:
        assert read_to_the_end(connection) == b""


@pytest.mark.parametrize("dribble", [b"x", b"x: y\r\n"])
def test_a_head_that_never_ends(impatient: Running, dribble: bytes) -> None:
    """Byte after byte, behind a request that was answered."""
    with connect(impatient) as connection:
        connection.settimeout(0.05)
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\nGET /health HTTP/1.1\r\n")
        received = b""
        for _ in range(int(WAIT / 0.05)):
            try:
                connection.sendall(dribble)
                chunk = connection.recv(1 << 16)
            except TimeoutError:
                continue
            except ConnectionError:
                break
            if not chunk:
                break
            received += chunk
        else:
            raise AssertionError("it goes on for ever")
    assert received.startswith(b"HTTP/1.1 200 OK")


def test_a_body_that_nobody_reads_does_not_hold_the_connection(impatient: Running) -> None:
    """It has its answer: there is no key."""
    with connect(impatient) as connection:
        connection.settimeout(0.05)
        connection.sendall(HEAD + b"content-length: 1000000\r\n\r\n")
        for _ in range(int(WAIT / 0.05)):
            try:
                connection.sendall(b"x")
                if not connection.recv(1 << 16):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            raise AssertionError("it goes on for ever")


def test_a_request_that_takes_longer_than_a_head_may_is_finished(impatient: Running) -> None:
    """With half of the next one's head behind it."""
    script = impatient.service.scripts["a"] = Script(waits=True)
    with connect(impatient) as connection, connect(impatient) as silent:
        body = json.dumps({"model": MODEL, "prompt": "a", "stream": True}).encode()
        head = HEAD + b"authorization: Bearer key\r\ncontent-length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body + b"GET / HTTP/1.1\r\nhos")
        assert script.waiting.wait(WAIT)
        assert read_to_the_end(silent) == b""  # it came later, and its time is up
        with pytest.raises(TimeoutError):
            connection.settimeout(0.2)
            while True:
                assert connection.recv(1 << 16)
    assert script.closed.wait(WAIT)


def test_a_connection_is_kept_between_requests(impatient: Running) -> None:
    with httpx.Client(base_url=impatient.url, timeout=WAIT) as client, connect(impatient) as silent:
        first = client.get("/health").extensions["network_stream"].get_extra_info("socket").getsockname()
        assert read_to_the_end(silent) == b""
        assert client.get("/health").extensions["network_stream"].get_extra_info("socket").getsockname() == first


@pytest.mark.parametrize(
    ("framing", "more"),
    [(b"content-length: 100000\r\n", b" "), (b"transfer-encoding: chunked\r\n", b"1\r\n \r\n")],
)
@pytest.mark.parametrize("head", [HEAD, b"GET /health HTTP/1.1\r\nhost: localhost\r\n"], ids=["refused", "answered"])
def test_a_body_that_nobody_reads_may_not_trickle(impatient: Running, head: bytes, framing: bytes, more: bytes) -> None:
    """It has as long as a head, from its first bytes behind the answer on."""
    with connect(impatient) as connection:
        connection.sendall(head + framing + b"\r\n")
        assert connection.recv(1 << 16).startswith((b"HTTP/1.1 401", b"HTTP/1.1 200"))
        began = time.monotonic()
        with suppress(ConnectionError):
            while True:
                assert time.monotonic() < began + WAIT
                if not select.select([connection], [], [], 0.05)[0]:
                    connection.sendall(more)
                elif not connection.recv(1 << 16):  # else the rest of the answer
                    break


def test_slow_connections_do_not_hold_up_others() -> None:
    class Slow(Connection):
        head_seconds = 5.0

    with running(http=Slow) as server, httpx.Client(base_url=server.url, timeout=WAIT) as client, ExitStack() as stack:
        slow = [stack.enter_context(connect(server)) for _ in range(500)]
        for number, connection in enumerate(slow):
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: "[: number % 40])
        for _ in range(20):
            assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200
        ends = [read_to_the_end(connection)[:12] for connection in slow]
    assert set(ends) == {b"", b"HTTP/1.1 408"}


def test_of_too_many_connections_that_wait_for_their_clients_the_oldest_ends() -> None:
    """Whatever each has said so far; who is being answered is none of them."""

    class Crowded(Connection):
        head_seconds = 10 * WAIT
        max_waiting = 20

    with running(http=Crowded) as server, ExitStack() as stack:
        script = server.service.scripts["a"] = Script(waits=True)
        answered = stack.enter_context(connect(server))
        body = json.dumps({"model": MODEL, "prompt": "a", "stream": True}).encode()
        answered.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        assert script.waiting.wait(WAIT)
        oldest = []
        said = [b"", HEAD, HEAD + LENGTH + b"\r\n" + BODY[:5], b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n"]
        for part in said:
            oldest.append(stack.enter_context(connect(server)))
            oldest[-1].sendall(part)
            with connect(server) as neighbour:  # an answer to it: the part before has been read
                neighbour.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                assert answer(neighbour)[0] == 200
        assert oldest[3].recv(1 << 16).startswith(b"HTTP/1.1 200 OK")
        for number in range(20):
            connection = stack.enter_context(connect(server))
            connection.sendall(b"GET")
            if number >= 16:
                received = read_to_the_end(oldest[number - 16])
                assert received.startswith(b"HTTP/1.1 503") == (number == 17), received
                assert (b"retry-after: 2\r\n" in received) == (number == 17)
        connection.sendall(b" /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert answer(connection)[0] == 200
        answered.settimeout(0.2)
        with pytest.raises(TimeoutError):
            while True:
                assert answered.recv(1 << 16)


@pytest.mark.parametrize("line", [b"x-%d: " + b"y" * 100 + b"\r\n", b"y" * 100 + b"%d"], ids=["many", "long"])
def test_a_head_without_an_end_is_refused_as_it_grows(patient: Running, line: bytes) -> None:
    with connect(patient) as connection:
        connection.sendall(HEAD + b"x: ")
        with suppress(ConnectionError):
            for number in range(100_000):
                connection.sendall(line % number)
        status, body = answer(connection)
    assert (status, body["error"]["code"]) == (431, "headers_too_large")
