"""The HTTP application: its routes, and what stands before and behind all of them."""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from cluster.api.edge.hosts import ANY
from cluster.api.edge.middleware import Edge
from cluster.api.errors import FORESEEN, ApiError, Unavailable, handle
from cluster.api.requests.fields import as_brief_json
from cluster.api.requests.parse import read_body
from cluster.api.requests.read import Reader, check_model
from cluster.api.requests.sampling import Model
from cluster.api.requests.validate import warning_header
from cluster.api.responses.chat import chat_events, chat_result
from cluster.api.responses.completions import completion_events, completion_result
from cluster.api.responses.generation import run
from cluster.api.responses.protocol import ModelCard, ModelList
from cluster.api.responses.resume import Resumable, StreamStore
from cluster.api.responses.stream import EventStream, unless_disconnected
from cluster.api.routes.openapi import describe
from cluster.api.service import Service
from cluster.version import VERSION
from engine.text_limit import TextLimit

HEALTH_RETRY_AFTER = 5.0  # seconds


def build(
    service: Service,
    *,
    model_name: str,
    max_model_len: int,
    vocab_size: int,
    default_sampling: Mapping[str, Any] | None = None,
    special_ids: frozenset[int] = frozenset(),
    text_limit: TextLimit | None = None,
    api_keys: tuple[str, ...] = (),
    allowed_hosts: tuple[str, ...] = (ANY,),
    streams: StreamStore | None = None,
    strict_fields: bool = False,
    max_body_bytes: int = 32 << 20,
    body_timeout: float = 60.0,
) -> FastAPI:
    """The application that answers with what `service` generates.

    `default_sampling` is for what requests leave out (`ModelConfig.default_sampling`); `text_limit`
    is the tokenizer's (`Tokenizer.text_limit`); `body_timeout` in seconds. Without `api_keys`
    everybody may ask. With `streams` a client may come back to a stream that broke (`resume`). With
    `strict_fields` a field that nobody knows is refused; else it is ignored, and the answer says
    so.
    """
    model = Model(
        name=model_name,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        default_sampling=default_sampling or {},
        special_ids=special_ids,
        text_limit=text_limit,
    )
    reader = Reader(model, strict_fields=strict_fields)
    resumable = Resumable(service, model, streams)
    card = ModelCard(model_name, int(time.time()), model_name, max_model_len)
    handled: tuple[type[Exception], ...] = (*FORESEEN, HTTPException, ClientDisconnect, Exception)
    app = FastAPI(
        openapi_url=None,
        redirect_slashes=False,
        exception_handlers={kind: handle for kind in handled},
    )
    app.add_middleware(Edge, api_keys=api_keys, allowed_hosts=allowed_hosts)
    document = msgspec.json.encode(describe(VERSION, needs_key=bool(api_keys), has_streams=streams is not None))

    get = partial(app.api_route, methods=["GET", "HEAD"])  # the server leaves the body of an answer to HEAD out

    async def body_of(request: Request) -> bytes:
        return await read_body(request, max_bytes=max_body_bytes, timeout=body_timeout)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        call = await reader.chat(await body_of(request))
        if call.stream:
            return EventStream(await resumable.events(request, call, chat_events), warning_header(call.unknown))
        updates = run(service, call)
        answer = await unless_disconnected(request.receive, chat_result(call, model, updates))
        return _json(answer, warning_header(call.unknown))

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        call = await reader.completion(await body_of(request))
        if call.stream:
            return EventStream(await resumable.events(request, call, completion_events), warning_header(call.unknown))
        updates = run(service, call)
        answer = await unless_disconnected(request.receive, completion_result(call, model, updates))
        return _json(answer, warning_header(call.unknown))

    @get("/v1/models")
    async def models() -> Response:
        return _json(msgspec.json.encode(ModelList([card])))

    @get("/v1/models/{model_id:path}")
    async def one_model(request: Request) -> Response:
        check_model(request.path_params["model_id"], model)
        return _json(msgspec.json.encode(card))

    @get("/health")
    async def health() -> Response:
        return _healthy_unless(await service.health())

    @get("/health/deep")
    async def deep_health() -> Response:
        return _healthy_unless(await service.deep_health())

    @get("/debug/engines")
    async def engines() -> Response:
        return _json(msgspec.json.encode({"engines": await service.engines()}))

    @get("/debug/trace")
    async def trace() -> Response:
        return _json(msgspec.json.encode(await service.trace()))

    @get("/debug/why/{request_id}")
    async def why(request: Request) -> Response:
        request_id = request.path_params["request_id"]
        seconds = await service.why(request_id)
        if seconds is None:
            raise ApiError(404, f"No request {as_brief_json(request_id)} is known (any more)", code="unknown_request")
        return _json(msgspec.json.encode({"request_id": request_id, "seconds": seconds}))

    @get("/version")
    async def version() -> Response:
        return _json(msgspec.json.encode({"version": VERSION}))

    @get("/openapi.json")
    async def openapi() -> Response:
        return _json(document)

    return app


def _healthy_unless(problems: list[str]) -> Response:
    if problems:
        raise Unavailable("; ".join(problems), code="not_ready", retry_after=HEALTH_RETRY_AFTER)
    return _json(b'{"status":"ok"}')


def _json(body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, headers=headers, media_type="application/json")
