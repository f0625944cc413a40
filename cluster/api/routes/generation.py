"""POST /v1/chat/completions and /v1/completions."""

import re
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from cluster.api.disconnect import unless_disconnected
from cluster.api.keys.limits import caller_of
from cluster.api.model import Model
from cluster.api.requests.body import Bodies
from cluster.api.requests.call import Call, traced
from cluster.api.requests.fields import MAX_TIMEOUT, as_brief_json
from cluster.api.requests.read import Reader
from cluster.api.responses.chat import chat_events, chat_result
from cluster.api.responses.completions import completion_events, completion_result
from cluster.api.responses.generation import Update, run
from cluster.api.responses.resume import Events, Resumable
from cluster.api.responses.stream import EventStream
from cluster.api.routes.answer import json_response
from cluster.api.service import Service
from engine.admission.queue_limits import Load
from engine.errors import InvalidRequest
from engine.request import BYTES_PER_TOKEN

TIMEOUT_HEADER = "X-Request-Timeout"
_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,9})?")
Read = Callable[[bytes], Coroutine[Any, Any, Call]]
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
        return await answer(request, reader.chat, chat_events, chat_result)

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await answer(request, reader.completion, completion_events, completion_result)

    async def answer(request: Request, read: Read, events: Events, result: Result) -> Response:
        may_be_refused = "last-event-id" not in request.headers  # a stream that broke was let in before
        if may_be_refused:
            service.check_room(_estimated_load(request, model))
        timeout = _timeout(request)
        call = traced(await bodies.read(request, read), request.headers)
        if timeout is not None:
            call = call.within(timeout)
        caller = caller_of(request.scope)
        if caller is not None:
            call = call.sent_by(caller)
        if may_be_refused:
            service.check_room(call.load, call.timeout, call.requests[0].share)
        if call.stream:
            return EventStream(await streams.events(request, call, events), call.headers)
        whole = await unless_disconnected(request.receive, result(call, model, run(service, call)))
        return json_response(whole, call.headers)


def _estimated_load(request: Request, model: Model) -> Load:
    """Before anything of the body is read; a prompt that exceeds the context is an error anyway."""
    length = request.headers.get("content-length", "")
    num_tokens = int(length) // BYTES_PER_TOKEN if length.isdecimal() else 0
    return Load(1, min(num_tokens, model.max_model_len))


def _timeout(request: Request) -> float | None:
    """Seconds for the answer, of the header; raises InvalidRequest."""
    text = request.headers.get(TIMEOUT_HEADER)
    if text is None:
        return None
    if not _SECONDS.fullmatch(text) or not 0 < float(text) <= MAX_TIMEOUT:
        raise InvalidRequest(
            f"{TIMEOUT_HEADER}: {as_brief_json(text)} is not a number of seconds above 0 and up to {MAX_TIMEOUT}",
            param=TIMEOUT_HEADER,
        )
    return float(text)
