"""What an application sends, without a connection."""

import asyncio
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.api.exchange import Exchange


def saying(media_type: bytes, parts: Iterable[bytes]) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        headers = [(b"content-type", media_type), (b"x-path", scope["path"].encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in parts:
            await send({"type": "http.response.body", "body": part.replace(b"BODY", body), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


async def texts(app: ASGIApp) -> list[bytes]:
    return [text async for text in Exchange(app, "/x", b'"sent"', {}).texts()]


async def test_a_whole_answer_is_one_text_however_it_is_sent() -> None:
    assert await texts(saying(b"application/json", [b'{"a":', b" BODY", b"}\n\n"])) == [b'{"a": "sent"}\n\n']


async def test_a_stream_is_a_text_an_event_wherever_it_is_cut() -> None:
    whole = b'event: a\nid: 1\ndata: {"n":1}\n\ndata: {"n":2}\n\ndata: [DONE]\n\n'
    for size in range(1, len(whole)):
        parts = [whole[at : at + size] for at in range(0, len(whole), size)]
        assert await texts(saying(b"text/event-stream; charset=utf-8", parts)) == [b'{"n":1}', b'{"n":2}']


async def test_the_application_waits_for_its_reader() -> None:
    told: list[int] = []

    def parts() -> Iterable[bytes]:
        for number in range(100):
            told.append(number)
            yield b"data: %d\n\n" % number

    stream = Exchange(saying(b"text/event-stream", parts()), "/x", b"{}", {}).texts()
    assert await anext(stream) == b"0"
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(told) < 5
    await stream.aclose()


async def test_an_application_that_fails_ends_its_answer() -> None:
    def parts() -> Iterable[bytes]:
        yield b"data: 1\n\n"
        raise RuntimeError("a bug")

    assert await texts(saying(b"text/event-stream", parts())) == [b"1"]
