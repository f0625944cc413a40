"""What no description leads to: very long, very deep, silent, cut short, or another protocol."""

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit

from tests.end_to_end.fuzz.judge import GIVEN_UP_SECONDS, Judge

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
H2C = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQCAAAAAAIAAAAA"}
WEBSOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
BROKEN_WEBSOCKETS = ({"Sec-WebSocket-Key": "eA=="}, {"Sec-WebSocket-Key": ""})  # a key has 16 bytes
WAIT_SECONDS = 60.0  # for the answer to what takes long to send or to read
SILENCE_SECONDS = 20.0  # within which a connection that says nothing is closed; the server's limit is ten
BODY = {"prompt": "once", "max_tokens": 2}


def bodies(scale: float) -> Iterator[tuple[str, str, bytes]]:
    """(name, route, body); 1 is the full size."""
    most = int(scale * (30 << 20))
    yield "prompt of 30 MiB", COMPLETIONS, json.dumps({"prompt": "a" * most}).encode()
    yield (
        "conversation of 30 MiB",
        CHAT,
        json.dumps({"messages": [{"role": "user", "content": "a " * (most // 2)}]}).encode(),
    )
    count = int(scale * 250_000)
    yield "250,000 messages", CHAT, json.dumps({"messages": [{"role": "user", "content": "a"}] * count}).encode()
    yield "250,000 prompts", COMPLETIONS, json.dumps({"prompt": ["a"] * count}).encode()
    yield "250,000 keys", COMPLETIONS, json.dumps(BODY | {str(key): 0 for key in range(count)}).encode()
    depth = int(scale * 1_000_000)
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        nested = opened * depth + "1" + closed * depth
        yield f"{depth} deep of {opened}", COMPLETIONS, nested.encode()
        yield f"{depth} deep of {opened} in a field", CHAT, f'{{"messages":{nested}}}'.encode()
        yield f"{depth} of {opened} unclosed", COMPLETIONS, (opened * depth).encode()
    yield "number of 10^6 digits", COMPLETIONS, b'{"prompt":"a","seed":' + b"9" * depth + b"}"
    yield "40 MiB", COMPLETIONS, b" " * (40 << 20)


class Extremes:
    """Sends them, each by a connection of its own."""

    def __init__(self, url: str, judge: Judge) -> None:
        self._judge = judge
        self._host, self._port = urlsplit(url).hostname or "", urlsplit(url).port or 80

    def large(self, scale: float) -> None:
        for name, route, body in bodies(scale):
            self._send(name, route, body, {})

    def upgrades(self) -> None:
        for headers in (H2C, WEBSOCKET, {"Connection": "Upgrade", "Upgrade": "nonsense"}):
            self._send(f"Upgrade: {headers['Upgrade']}", COMPLETIONS, json.dumps(BODY).encode(), headers)
        for key in BROKEN_WEBSOCKETS:
            name = f"Upgrade: websocket with {key}"
            self._send(name, COMPLETIONS, json.dumps(BODY).encode(), WEBSOCKET | key, is_http=False)

    def oddities(self) -> None:
        """Heads and bodies that are not those of a request."""
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        for sent in (
            b"\x00\xff\x00\xff\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET /\x00 HTTP/1.1\r\nhost: localhost\r\n\r\n",
            head + b"content-length: -1\r\n\r\n{}",
            head + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
            head + b"transfer-encoding: chunked\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n",
            head + b"x: " + b"y" * 100_000 + b"\r\ncontent-length: 2\r\n\r\n{}",
            head + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}",
        ):
            self._raw(f"{sent[:60]!r}... of {len(sent)} bytes", sent)

    def silence(self) -> None:
        """Connections that say nothing, or half of a head: they are closed before long."""
        for sent in (b"", b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthor"):
            self._judge.num_inputs += 1
            with socket.create_connection((self._host, self._port), timeout=SILENCE_SECONDS) as connection:
                connection.sendall(sent)
                try:
                    while connection.recv(1 << 16):
                        pass
                except TimeoutError:
                    self._judge.fail(f"still open after {SILENCE_SECONDS:.0f} s", f"a connection that said {sent!r}")
                except ConnectionError:
                    pass  # closed is what is asked for

    def _send(self, name: str, route: str, body: bytes, headers: dict[str, str], *, is_http: bool = True) -> None:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=WAIT_SECONDS)
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # refused before its end: the answer may be there
                connection.request("POST", route, body, {"content-type": "application/json"} | headers)
            sent = time.monotonic()
            answer = connection.getresponse()
            content = answer.read()
            self._judge.check(name, answer.status, content, time.monotonic() - sent, is_http=is_http)
        except (OSError, http.client.HTTPException) as error:
            self._judge.num_inputs += 1
            if not isinstance(error, ConnectionError):  # which is what is left of a refusal in the middle of a body
                self._judge.fail(f"no answer: {error!r}", name)
        finally:
            connection.close()

    def _raw(self, name: str, sent: bytes) -> None:
        with socket.create_connection((self._host, self._port), timeout=GIVEN_UP_SECONDS) as connection:
            began = time.monotonic()
            try:
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                told = b"".join(iter(lambda: connection.recv(1 << 16), b""))
            except ConnectionError:
                told = b""
            except TimeoutError:
                self._judge.fail("hung", name)
                told = b""
        head, _, body = told.partition(b"\r\n\r\n")
        status = int(head.split(b" ")[1]) if head.startswith(b"HTTP/1.1 ") else 0  # 0: closed without a word
        if status:
            self._judge.check(name, status, body, time.monotonic() - began, is_http=False)
        else:
            self._judge.num_inputs += 1
