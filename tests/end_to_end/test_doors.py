"""What stands between the network and us, with HAProxy in between where it can be had; with
Serve's own proxy: `test_serves_proxy`.
"""

import socket

import httpx
import pytest

from tests.end_to_end.conftest import LOOPBACK, Server

WAIT = 60.0  # seconds; for what should take ten at most
BODY = {"prompt": "once", "max_tokens": 2, "ignore_eos": True}
OFFERS = {
    "h2c": {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQCAAAAAAIAAAAA"},
    "websocket": {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    },
}


@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
def test_an_offer_of_another_protocol_is_ignored(server: Server, offer: dict[str, str]) -> None:
    response = httpx.post(f"{server.url}/v1/completions", json=BODY, headers=offer, timeout=WAIT)
    assert (response.status_code, response.json()["object"]) == (200, "text_completion")


def test_connections_that_say_nothing_end(server: Server) -> None:
    with (
        socket.create_connection((LOOPBACK, server.port), timeout=WAIT) as silent,
        socket.create_connection((LOOPBACK, server.port), timeout=WAIT) as half,
    ):
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthor")
        assert silent.recv(1) == b""
        assert half.recv(1 << 16).startswith(b"HTTP/1.1 408")


def test_serves_routes_are_nobodys_business_and_its_health_is(server: Server) -> None:
    response = httpx.get(f"{server.url}/-/routes")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "unknown_url")
    assert httpx.get(f"{server.url}/-/healthz").text == "success"


@pytest.mark.parametrize(
    "name", ["x-request-timeout-seconds", "serve_multiplexed_model_id", "x-session-id", "x-request-disconnect-disabled"]
)
@pytest.mark.parametrize("value", [b"0.000001", b"?1", b"\xff\xfe"])
def test_serves_own_headers_mean_nothing(server: Server, name: str, value: bytes) -> None:
    headers = [(name.encode(), value)]
    response = httpx.post(f"{server.url}/v1/completions", json=BODY, headers=headers, timeout=WAIT)
    assert response.status_code == 200
