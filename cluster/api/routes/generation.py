"""POST /v1/chat/completions and /v1/completions."""

from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from cluster.api.disconnect import unless_disconnected
from cluster.api.model import Model
from cluster.api.requests.body import Bodies
from cluster.api.requests.call import Call
from cluster.api.requests.read import Reader
from cluster.api.responses.chat import chat_events, chat_result
from cluster.api.responses.completions import completion_events, completion_result
from cluster.api.responses.generation import Update, run
from cluster.api.responses.resume import Events, Resumable
from cluster.api.responses.stream import EventStream
from cluster.api.routes.answer import json_response
from cluster.api.service import Service

Result = Callable[[Call, Model, AsyncGenerator[Update, None]], Coroutine[Any, Any, bytes]]


def add_routes(
    router: APIRouter,
    service: Service,
    model: Model,
    bodies: Bodies,
    reader: Reader,
    streams: Resumable,
) -> None:
    @router.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await answer(request, await bodies.read(request, reader.chat), chat_events, chat_result)

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        call = await bodies.read(request, reader.completion)
        return await answer(request, call, completion_events, completion_result)

    async def answer(request: Request, call: Call, events: Events, result: Result) -> Response:
        if call.stream:
            return EventStream(await streams.events(request, call, events), call.headers)
        whole = await unless_disconnected(request.receive, result(call, model, run(service, call)))
        return json_response(whole, call.headers)
