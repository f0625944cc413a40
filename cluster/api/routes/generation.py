"""POST /v1/chat/completions and /v1/completions."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from cluster.api.model import Model
from cluster.api.requests.call import Call
from cluster.api.requests.read import Reader
from cluster.api.responses.chat import chat_events, chat_result
from cluster.api.responses.completions import completion_events, completion_result
from cluster.api.responses.generation import Update, run
from cluster.api.responses.resume import Events, Resumable
from cluster.api.responses.stream import EventStream, unless_disconnected
from cluster.api.routes.answer import json_response
from cluster.api.service import Service

Result = Callable[[Call, Model, AsyncGenerator[Update, None]], Coroutine[Any, Any, bytes]]


def add_routes(
    router: APIRouter,
    service: Service,
    model: Model,
    body_of: Callable[[Request], Awaitable[bytes]],
    reader: Reader,
    streams: Resumable,
) -> None:
    @router.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await answer(request, await reader.chat(await body_of(request)), chat_events, chat_result)

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        call = await reader.completion(await body_of(request))
        return await answer(request, call, completion_events, completion_result)

    async def answer(request: Request, call: Call, events: Events, result: Result) -> Response:
        if call.stream:
            return EventStream(await streams.events(request, call, events), call.headers)
        whole = await unless_disconnected(request.receive, result(call, model, run(service, call)))
        return json_response(whole, call.headers)
