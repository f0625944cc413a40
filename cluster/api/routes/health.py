"""GET /health, which is also /ping, and /health/deep: whether requests can be taken."""

from fastapi import APIRouter
from starlette.responses import Response

from cluster.api.errors import Unavailable
from cluster.api.routes.answer import READ, json_response
from cluster.api.service import Application

RETRY_AFTER = 5.0  # seconds


def add_routes(router: APIRouter, application: Application) -> None:
    @router.api_route("/health", methods=READ)
    @router.api_route("/ping", methods=READ)  # where some clouds ask
    async def health() -> Response:
        return _healthy_unless(await application.health())

    @router.api_route("/health/deep", methods=READ)
    async def deep_health() -> Response:
        return _healthy_unless(await application.deep_health())


def _healthy_unless(problems: list[str]) -> Response:
    if problems:
        raise Unavailable("; ".join(problems), code="not_ready", retry_after=RETRY_AFTER)
    return json_response(b'{"status":"ok"}')
