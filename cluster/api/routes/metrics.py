"""GET /metrics: figures of the whole application, for Prometheus."""

from fastapi import APIRouter
from starlette.responses import Response

from cluster.api.routes.answer import READ
from cluster.api.service import Application

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def add_routes(router: APIRouter, application: Application) -> None:
    @router.api_route("/metrics", methods=READ)
    async def metrics() -> Response:
        return Response(await application.metrics(), headers={"content-type": CONTENT_TYPE})
