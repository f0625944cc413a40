"""/v1/batches: files of requests, answered in the background."""

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from cluster.api.errors import ApiError
from cluster.api.requests.body import Bodies
from cluster.api.requests.fields import Inert
from cluster.api.requests.parse import parse_object
from cluster.api.requests.validate import ignored_fields, refuse_ignored, validate
from cluster.api.routes.answer import READ
from cluster.api.routes.batch.shared import NOT_ASKED, answer, owner_of, page
from cluster.api.service import Batches

DEFAULT_PAGE = 20
MAX_METADATA = 16
Name = Annotated[str, Field(min_length=1, max_length=64)]
Value = Annotated[str, Field(max_length=512)]


class BatchRequest(BaseModel):
    """The body of POST /v1/batches."""

    model_config = ConfigDict(extra="allow", strict=True)

    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"] = "24h"
    metadata: Annotated[dict[Name, Value], Field(max_length=MAX_METADATA)] | None = None
    # Not supported.
    output_expires_after: Annotated[Any, Inert(why="Answers stay until they are deleted")] = None


def add_routes(router: APIRouter, batches: Batches, bodies: Bodies) -> None:
    @router.post("/v1/batches")
    async def create_batch(request: Request) -> Response:
        asked = await bodies.read(request, _read)
        endpoints = batch_urls(router)
        if asked.endpoint not in endpoints:
            message = f"endpoint={asked.endpoint[:64]!r} is not one of {', '.join(endpoints)}"
            raise ApiError(400, message, code="invalid_value", param="endpoint")
        made = await asyncio.to_thread(
            batches.create, owner_of(request), asked.input_file_id, asked.endpoint, asked.metadata
        )
        return answer(made)

    @router.api_route("/v1/batches", methods=READ)
    async def list_batches(request: Request) -> Response:
        return page(request, await asyncio.to_thread(batches.batches, owner_of(request)), DEFAULT_PAGE)

    @router.api_route("/v1/batches/{batch_id}", methods=READ)
    async def batch(request: Request, batch_id: str) -> Response:
        return answer(await asyncio.to_thread(batches.batch, owner_of(request), batch_id))

    @router.post("/v1/batches/{batch_id}/cancel")
    async def cancel_batch(request: Request, batch_id: str) -> Response:
        return answer(await asyncio.to_thread(batches.cancel, owner_of(request), batch_id))


async def _read(body: bytes) -> BatchRequest:
    asked = validate(BatchRequest, parse_object(body))
    refuse_ignored(ignored_fields(asked))
    return asked


def batch_urls(router: APIRouter) -> list[str]:
    """What lines may ask: whatever this server answers to a POST."""
    posts: list[Any] = [route for route in router.routes if "POST" in (getattr(route, "methods", None) or ())]
    paths = sorted(route.path for route in posts if route.path.startswith("/v1/") and "{" not in route.path)
    return [path for path in paths if path not in NOT_ASKED]
