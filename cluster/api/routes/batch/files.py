"""/v1/files: the input and output files of batches."""

import asyncio
from collections.abc import AsyncGenerator

from fastapi import APIRouter, Request
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.responses import Response, StreamingResponse

from cluster.api.batches import MAX_FILE_BYTES, FileDeleted
from cluster.api.errors import ApiError
from cluster.api.routes.answer import READ
from cluster.api.routes.batch.shared import MAX_PAGE, answer, owner_of, page
from cluster.api.service import Batches
from engine.errors import Overloaded

SECONDS = 600.0  # for an upload
MAX_UPLOADS = 4  # at once: each has its bytes on this machine's disk until it is whole
MAX_OTHER_BYTES = 64 << 10  # of the form, beside the file
MAX_FILENAME = 255


def add_routes(router: APIRouter, batches: Batches) -> None:
    uploads = _Uploads()

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


class _Uploads:
    """Receives forms, their files on this machine's disk."""

    def __init__(self) -> None:
        self._num_running = 0

    def form(self, request: Request) -> "_Form":
        return _Form(self, request)

    def begin(self) -> None:
        if self._num_running == MAX_UPLOADS:
            raise Overloaded(f"{MAX_UPLOADS} files are being uploaded already")
        self._num_running += 1

    def end(self) -> None:
        self._num_running -= 1


class _Form:
    """A form while it is used."""

    def __init__(self, uploads: _Uploads, request: Request) -> None:
        self._uploads = uploads
        self._request = request
        self._form = FormData()

    async def __aenter__(self) -> FormData:
        """Raises ApiError, Overloaded."""
        media_type = self._request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "multipart/form-data":
            raise ApiError(415, "The content-type must be multipart/form-data", code="unsupported_media_type")
        self._uploads.begin()
        try:
            async with asyncio.timeout(SECONDS):
                parser = MultiPartParser(self._request.headers, _limited(self._request), max_files=1, max_fields=8)
                self._form = await parser.parse()
        except TimeoutError:
            self._uploads.end()
            raise ApiError(408, f"The file was not complete after {SECONDS:g} s", code="request_timeout") from None
        except (MultiPartException, KeyError, ValueError) as error:
            self._uploads.end()
            raise ApiError(400, f"The form cannot be read: {error}", code="invalid_form") from None
        except BaseException:
            self._uploads.end()
            raise
        return self._form

    async def __aexit__(self, *_: object) -> None:
        self._uploads.end()
        await self._form.close()


async def _limited(request: Request) -> AsyncGenerator[bytes, None]:
    num_bytes = 0
    async for data in request.stream():
        num_bytes += len(data)
        if num_bytes > MAX_FILE_BYTES + MAX_OTHER_BYTES:
            raise ApiError(413, f"A file has at most {MAX_FILE_BYTES} bytes", code="request_too_large", param="file")
        yield data


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
