"""Receives the forms by which files are uploaded, with limits on size, time and number."""

import asyncio
import time
from collections.abc import AsyncGenerator

from fastapi import Request
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser

from cluster.api.batches import MAX_FILE_BYTES
from cluster.api.errors import ApiError
from engine.errors import Overloaded

SECONDS = 600.0  # for an upload
MAX_UPLOADS = 4  # at once: each has its bytes on this machine's disk until it is whole
MAX_OTHER_BYTES = 64 << 10  # of the form, beside the file
PACE_BYTES = 256 << 10  # that come in PACE_SECONDS of waiting for them, or the upload's place is another's
PACE_SECONDS = 15.0


class Uploads:
    """Their files are on this machine's disk while they come, and until they have been used."""

    def __init__(
        self, *, seconds: float = SECONDS, pace_bytes: int = PACE_BYTES, pace_seconds: float = PACE_SECONDS
    ) -> None:
        """A form has so many `seconds` to arrive, `pace_seconds` for each `pace_bytes` of it."""
        self._seconds = seconds
        self._pace_bytes = pace_bytes
        self._pace_seconds = pace_seconds
        self._num_running = 0

    def form(self, request: Request) -> "Form":
        return Form(self, request)

    async def receive(self, request: Request) -> FormData:
        """Raises ApiError, Overloaded."""
        if self._num_running == MAX_UPLOADS:
            raise Overloaded(f"{MAX_UPLOADS} files are being uploaded already")
        self._num_running += 1
        try:
            async with asyncio.timeout(self._seconds):
                parser = MultiPartParser(request.headers, self._paced(request), max_files=1, max_fields=8)
                return await parser.parse()
        except TimeoutError:
            self.end()
            raise _too_slow(f"The file was not complete after {self._seconds:g} s") from None
        except (MultiPartException, KeyError, ValueError) as error:
            self.end()
            raise ApiError(400, f"The form cannot be read: {error}", code="invalid_form") from None
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Of one that was received."""
        self._num_running -= 1

    async def _paced(self, request: Request) -> AsyncGenerator[bytes, None]:
        """The body. Waiting for the client is counted, and not what is done with what has come."""
        stream = request.stream()
        num_bytes, num_paced, left = 0, 0, self._pace_seconds
        while True:
            start = time.monotonic()
            try:
                async with asyncio.timeout(left):
                    data = await anext(stream, None)
            except TimeoutError:
                came = f"{num_paced} bytes of the file came in {self._pace_seconds:g} s"
                raise _too_slow(f"{came}; {self._pace_bytes} have to") from None
            if data is None:
                return
            num_bytes, num_paced, left = num_bytes + len(data), num_paced + len(data), left - time.monotonic() + start
            if num_paced >= self._pace_bytes:
                num_paced, left = 0, self._pace_seconds
            if num_bytes > MAX_FILE_BYTES + MAX_OTHER_BYTES:
                raise ApiError(
                    413, f"A file has at most {MAX_FILE_BYTES} bytes", code="request_too_large", param="file"
                )
            yield data


class Form:
    """A form while it is used."""

    def __init__(self, uploads: Uploads, request: Request) -> None:
        self._uploads = uploads
        self._request = request
        self._form = FormData()

    async def __aenter__(self) -> FormData:
        """Raises ApiError, Overloaded."""
        media_type = self._request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "multipart/form-data":
            raise ApiError(415, "The content-type must be multipart/form-data", code="unsupported_media_type")
        self._form = await self._uploads.receive(self._request)
        return self._form

    async def __aexit__(self, *_: object) -> None:
        self._uploads.end()
        await self._form.close()


def _too_slow(message: str) -> ApiError:
    return ApiError(408, message, code="request_timeout", headers={"connection": "close"})
