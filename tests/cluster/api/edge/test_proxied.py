"""Requests that come through a proxy, and what a gateway says if the proxy is not set up."""

import logging

import pytest
from ray.serve._private.http_util import parse_disconnect_disabled_header
from starlette.types import Receive, Scope, Send

from cluster.api.edge.proxied import WATCHED, BareProxyWarning, ProxyEdge


async def nothing(*_: object) -> None:
    """An application, and a server."""


async def pass_on(scope: Scope) -> Scope:
    """What an application behind a proxy is given."""
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)

    await ProxyEdge(app)(scope, nothing, nothing)
    (passed,) = seen
    return passed


async def test_only_serves_own_headers_are_taken_out() -> None:
    headers = [(b"x-session-id", b"1"), (b"accept", b"*/*"), (b"x-request-timeout-seconds", b"1")]
    passed = await pass_on({"type": "http", "path": "/", "headers": headers})
    assert passed["headers"] == [(b"accept", b"*/*")]


async def test_serve_is_told_that_the_application_watches_for_disconnects() -> None:
    headers = [(b"accept", b"*/*"), (b"x-request-disconnect-disabled", b"?0")]
    passed = await pass_on({"type": "http", "path": "/", "headers": headers, "extensions": {WATCHED: {}}})
    assert parse_disconnect_disabled_header(dict(passed["headers"]))
    headers = [(b"accept", b"*/*"), (b"x-request-disconnect-disabled", b"?1")]
    passed = await pass_on({"type": "http", "path": "/", "headers": headers})
    assert not parse_disconnect_disabled_header(dict(passed["headers"])), "as a client would have it"


async def test_a_gateway_says_once_that_a_proxy_was_not_set_up(caplog: pytest.LogCaptureFixture) -> None:
    bare: Scope = {"type": "http", "path": "/", "headers": []}
    gateway = BareProxyWarning(nothing)
    with caplog.at_level(logging.WARNING, logger="ray.serve"):
        await gateway(await pass_on(bare), nothing, nothing)
        assert caplog.messages == []
        await gateway(bare, nothing, nothing)
        await gateway(bare, nothing, nothing)
    (message,) = caplog.messages
    assert "without RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=cluster.api.proxy:set_up" in message
