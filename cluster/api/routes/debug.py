"""/debug/...: what engines are doing, and where a request's time went."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from cluster.api.errors import ApiError
from cluster.api.requests.fields import as_brief_json
from cluster.api.routes.answer import READ, json_response
from cluster.api.service import KILL_PATH, Application, WorkerKiller
from cluster.version import VERSION


def _tasks() -> Counter[str]:
    """Of this process' event loop, by what they run."""
    return Counter(str(getattr(task.get_coro(), "__qualname__", "?")) for task in asyncio.all_tasks())


def add_routes(router: APIRouter, application: Application, killer: WorkerKiller | None) -> None:
    """With a `killer`, the server's own page may have a worker killed: see `KILL_PATH`."""

    @router.api_route("/debug/view", methods=READ)
    async def view(request: Request) -> Response:
        engines = await application.view(request.query_params.get("replica"))
        told = {"version": VERSION, "can_kill": killer is not None, "engines": engines}
        return json_response(msgspec.json.encode(told), {"cache-control": "no-store"})

    if killer is not None:

        @router.post(KILL_PATH)
        async def kill_worker() -> Response:
            return json_response(msgspec.json.encode(await killer.kill_worker()))

    @router.api_route("/debug/engines", methods=READ)
    async def engines() -> Response:
        gateway = {"pid": os.getpid(), **application.held(), "tasks": _tasks()}
        return json_response(msgspec.json.encode({"engines": await application.engines(), "gateway": gateway}))

    @router.api_route("/debug/trace", methods=READ)
    async def trace() -> Response:
        pieces = application.trace()
        first = await anext(pieces)  # if an engine does not answer, that is the answer

        async def all_pieces() -> AsyncGenerator[bytes, None]:
            yield first
            async for piece in pieces:
                yield piece

        return StreamingResponse(all_pieces(), media_type="application/json")

    @router.api_route("/debug/why/{request_id}", methods=READ)
    async def time_of_request(request: Request) -> Response:
        request_id = request.path_params["request_id"]
        told = await application.why(request_id)
        if told is None:
            raise ApiError(404, f"Request {as_brief_json(request_id)} is unknown or forgotten", code="unknown_request")
        return json_response(msgspec.json.encode({"request_id": request_id} | told))
