"""GET / and /page/...: the page, whose files tell nothing of what is served and need no key."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from cluster.api.errors import ApiError
from cluster.api.requests.fields import as_brief_json
from cluster.api.routes.answer import READ
from cluster.page.files import INDEX, PageFile, read_files

# A browser loads and runs nothing but the page's own files, and no text becomes markup or code.
POLICY = "; ".join(
    [
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "connect")),
        *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
        *("require-trusted-types-for 'script'", "trusted-types 'none'"),
    ]
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # a browser may keep it, and asks each time whether it is still the same
}


def add_routes(router: APIRouter) -> None:
    files = read_files()

    @router.api_route("/", methods=READ)
    async def index(request: Request) -> Response:
        return _answer(files[INDEX], request)

    @router.api_route("/page/{file:path}", methods=READ)
    async def file(request: Request) -> Response:
        name = request.path_params["file"]
        if name not in files:
            raise ApiError(404, f"The page has no file {as_brief_json(name)}", code="unknown_url")
        return _answer(files[name], request)


def _answer(file: PageFile, request: Request) -> Response:
    headers = HEADERS | {"etag": file.etag}
    if _has(request.headers.get("if-none-match", ""), file.etag):
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers=headers | {"content-type": file.media_type})


def _has(known: str, etag: str) -> bool:
    """Whether it is among those of an If-None-Match header."""
    return any(each.strip().removeprefix("W/") in (etag, "*") for each in known.split(","))
