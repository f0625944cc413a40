"""Shared parts of the routes."""

from collections.abc import Mapping

from starlette.responses import Response

READ = ["GET", "HEAD"]  # methods; the server omits the body in answers to HEAD


def json_response(body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, headers=headers, media_type="application/json")
