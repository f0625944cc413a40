"""GET /version and /openapi.json."""

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from cluster.api.routes.answer import READ, json_response
from cluster.api.routes.description.openapi import describe
from cluster.version import VERSION


def add_routes(router: APIRouter, *, needs_key: bool, **parts: bool) -> None:
    """`parts`: what there is, see `describe`."""
    document = msgspec.json.encode(describe(VERSION, needs_key=needs_key, **parts))

    @router.api_route("/version", methods=READ)
    async def version() -> Response:
        return json_response(msgspec.json.encode({"version": VERSION}))

    @router.api_route("/openapi.json", methods=READ)
    async def openapi() -> Response:
        return json_response(document)
