"""A batch's requests over HTTP."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from aiohttp import web

from cluster.batch.doors import HttpDoor, KeyRefused, Unreachable
from cluster.batch.files.lines import Reply


async def said(request: web.Request) -> web.Response:
    body = await request.text()
    told = f"{request.headers['authorization']} {request.headers['content-type']} {body}"
    return web.Response(status=503, text=told, headers={"Retry-After": "7", "X-Request-Id": "r1"})


async def refused(_: web.Request) -> web.Response:
    return web.json_response({"error": {"code": "invalid_api_key"}}, status=401)


async def with_server(ask: Any, says: Any = said) -> Any:
    """What `ask` makes of a server's URL."""
    application = web.Application()
    application.router.add_post("/v1/completions", says)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        return await ask(f"http://{host}:{port}")
    finally:
        await runner.cleanup()


async def asked(url: str) -> Reply:
    door = HttpDoor(url, "sk-1")
    assert "sk-1" not in repr(door)
    opened = door.open()
    try:
        return await opened.post("/v1/completions", b'{"prompt":"a"}')
    finally:
        await opened._session.close()


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


def test_an_answer_is_passed_on_with_what_it_says_of_another_try() -> None:
    assert run(with_server(asked)) == Reply(503, b'Bearer sk-1 application/json {"prompt":"a"}', "r1", 7.0)


def test_nothing_that_listens_is_unreachable() -> None:
    async def url_of(url: str) -> str:
        return url

    url = run(with_server(url_of))
    with pytest.raises(Unreachable, match=r"Connect call failed|Connection refused"):
        run(asked(url))


def test_a_key_that_the_server_does_not_take_is_no_answer_of_the_line() -> None:
    with pytest.raises(KeyRefused, match=r"does not take the API key: status 401: .*invalid_api_key"):
        run(with_server(asked, refused))
