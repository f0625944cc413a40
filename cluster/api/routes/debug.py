"""GET /debug/...: what engines are doing, and where a request's time went."""

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from cluster.api.errors import ApiError
from cluster.api.requests.fields import as_brief_json
from cluster.api.routes.answer import READ, json_response
from cluster.api.service import Application


def add_routes(router: APIRouter, application: Application) -> None:
    @router.api_route("/debug/engines", methods=READ)
    async def engines() -> Response:
        return json_response(msgspec.json.encode({"engines": await application.engines()}))

    @router.api_route("/debug/trace", methods=READ)
    async def trace() -> Response:
        return json_response(msgspec.json.encode(await application.trace()))

    @router.api_route("/debug/why/{request_id}", methods=READ)
    async def time_of_request(request: Request) -> Response:
        request_id = request.path_params["request_id"]
        told = await application.why(request_id)
        if told is None:
            raise ApiError(404, f"Request {as_brief_json(request_id)} is unknown or forgotten", code="unknown_request")
        return json_response(msgspec.json.encode({"request_id": request_id} | told))
