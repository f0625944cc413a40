"""GET /version and /openapi.json."""

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from cluster.api.routes.answer import READ, json_response
from cluster.api.routes.openapi import describe
from cluster.version import VERSION


def add_routes(router: APIRouter, *, needs_key: bool, has_streams: bool, has_batches: bool, has_loader: bool) -> None:
    """`has_streams`: broken streams can be resumed; `has_batches`: there are files and batches;
    `has_loader`: adapters can be loaded."""
    document = msgspec.json.encode(
        describe(VERSION, needs_key=needs_key, has_streams=has_streams, has_batches=has_batches, has_loader=has_loader)
    )

    @router.api_route("/version", methods=READ)
    async def version() -> Response:
        return json_response(msgspec.json.encode({"version": VERSION}))

    @router.api_route("/openapi.json", methods=READ)
    async def openapi() -> Response:
        return json_response(document)
