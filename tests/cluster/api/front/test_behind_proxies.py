"""An application that has what is behind Serve's proxies, asked as they ask."""

import asyncio

import pytest
from fastapi import FastAPI
from starlette.responses import StreamingResponse
from starlette.types import Message

from cluster.api.connection.window import WINDOW, WINDOW_BYTES
from cluster.api.edge.lost_gateway import TAKEN
from cluster.api.edge.proxied import MARK
from cluster.api.front.behind_proxies import expect_proxies

PART = b"x" * WINDOW_BYTES


async def test_the_proxy_is_told_who_has_the_request_and_tells_how_much_is_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = FastAPI()
    app.add_api_route("/", lambda: StreamingResponse(iter([PART] * 3)))
    expect_proxies(app, 7.0)
    sent, updates = list[Message](), asyncio.Queue[Message]()

    async def send(message: Message) -> None:
        sent.append(message)
        if message["type"] == "http.response.body":
            updates.put_nowait({"type": WINDOW, "num_written": len(sent) * WINDOW_BYTES})

    extensions = {MARK: {}, TAKEN: {}, WINDOW: {}}
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"", "extensions": extensions}
    await app({**scope, "asgi": {"spec_version": "2.3"}}, updates.get, send)
    assert sent[0] == {"type": TAKEN, "patience": 7.0}
    assert b"".join(each.get("body", b"") for each in sent) == PART * 3
    assert caplog.messages == []
