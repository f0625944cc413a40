"""/v1/files: the input and output files of batches."""

import asyncio

from fastapi import APIRouter, Request
from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response, StreamingResponse

from cluster.api.batches import MAX_FILE_BYTES, FileDeleted
from cluster.api.errors import ApiError
from cluster.api.routes.answer import READ
from cluster.api.routes.batch.shared import MAX_PAGE, answer, owner_of, page
from cluster.api.routes.batch.uploads import Uploads
from cluster.api.service import Batches

MAX_FILENAME = 255


def add_routes(router: APIRouter, batches: Batches, uploads: Uploads) -> None:
    @router.post("/v1/files")
    async def create_file(request: Request) -> Response:
        owner = owner_of(request)
        async with uploads.form(request) as form:
            file = _file_of(form)
            name = (file.filename or "file")[:MAX_FILENAME]
            return answer(await asyncio.to_thread(batches.create_file, owner, name, file.file))

    @router.api_route("/v1/files", methods=READ)
    async def files(request: Request) -> Response:
        found = await asyncio.to_thread(batches.files, owner_of(request))
        purpose = request.query_params.get("purpose")
        return page(request, [file for file in found if purpose in (None, file.purpose)], MAX_PAGE)

    @router.api_route("/v1/files/{file_id}", methods=READ)
    async def file(request: Request, file_id: str) -> Response:
        return answer(await asyncio.to_thread(batches.file, owner_of(request), file_id))

    @router.delete("/v1/files/{file_id}")
    async def delete_file(request: Request, file_id: str) -> Response:
        await asyncio.to_thread(batches.delete_file, owner_of(request), file_id)
        return answer(FileDeleted(id=file_id))

    @router.api_route("/v1/files/{file_id}/content", methods=READ)
    async def content(request: Request, file_id: str) -> Response:
        owner = owner_of(request)
        found = await asyncio.to_thread(batches.file, owner, file_id)
        headers = {"content-length": str(found.bytes)}
        return StreamingResponse(
            batches.content(owner, file_id), headers=headers, media_type="application/octet-stream"
        )


def _file_of(form: FormData) -> UploadFile:
    file, purpose = form.get("file"), form.get("purpose")
    for name in sorted(form.keys() - {"file", "purpose"}):
        raise ApiError(400, f"{name[:64]!r} is not supported", code="unsupported_parameter", param=name[:64])
    if not isinstance(file, UploadFile):
        raise ApiError(400, "The form has no file", code="missing_required_parameter", param="file")
    if purpose is None:
        raise ApiError(400, "'purpose' is required", code="missing_required_parameter", param="purpose")
    if purpose != "batch":
        shown = str(purpose)[:32]
        raise ApiError(400, f"purpose={shown!r}: only batch is supported", code="unsupported_value", param="purpose")
    if not file.size:
        raise ApiError(400, "The file is empty", code="empty_file", param="file")
    if file.size > MAX_FILE_BYTES:
        raise ApiError(413, f"A file has at most {MAX_FILE_BYTES} bytes", code="request_too_large", param="file")
    return file
