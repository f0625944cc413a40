"""What the routes have in common."""

from collections.abc import Mapping

from starlette.responses import Response

READ = ["GET", "HEAD"]  # methods; the server leaves the body of an answer to HEAD out


def json_response(body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, headers=headers, media_type="application/json")
