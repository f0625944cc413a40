"""How slow and how many uploads of files may be, with a server and sockets."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any

import httpx
import pytest
from fastapi import FastAPI

from cluster.api.batches import FileObject, Owner
from cluster.api.errors import HANDLERS
from cluster.api.routes.batch import files
from cluster.api.routes.batch.uploads import MAX_UPLOADS, Uploads
from tests.cluster.api.scripted import listening

HEAD = b"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary=b\r\n"
BEGUN = b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'
FILE = {"file": b"x" * 100_000}
PURPOSE = {"purpose": "batch"}


class Kept:
    """As much of `Batches` as an upload needs."""

    def create_file(self, owner: Owner, filename: str, data: IO[bytes]) -> FileObject:
        return FileObject(id="file-1", bytes=len(data.read()), created_at=0, filename=filename, purpose="batch")


@contextmanager
def server(**limits: Any) -> Iterator[int]:
    app = FastAPI(exception_handlers=HANDLERS)
    files.add_routes(app.router, Kept(), Uploads(**limits))  # type: ignore[arg-type]
    with listening(app) as port:
        yield port


def begin(stack: ExitStack, port: int, sent: bytes = BEGUN) -> socket.socket:
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
    connection.sendall(HEAD + b"content-length: 1000000\r\n\r\n" + sent)
    return connection


def read_all(connection: socket.socket) -> bytes:
    received = b""
    while data := connection.recv(1 << 16):  # until the server closes
        received += data
    return received


def upload(port: int) -> httpx.Response:
    return httpx.post(f"http://127.0.0.1:{port}/v1/files", files=FILE, data=PURPOSE)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"pace_seconds": 0.1}, "bytes of the file came in 0.1 s; 262144 have to"),
        ({"seconds": 0.1}, "The file was not complete after 0.1 s"),
    ],
)
def test_places_of_uploads_that_stand_still_are_given_to_others(limits: dict[str, float], words: str) -> None:
    with server(**limits) as port, ExitStack() as stack:
        for connection in [begin(stack, port) for _ in range(MAX_UPLOADS)]:
            answer = read_all(connection)
            assert answer.startswith(b"HTTP/1.1 408 ")
            error = json.loads(answer.split(b"\r\n\r\n")[1])["error"]
            assert error["code"] == "request_timeout" and words in error["message"]
        assert upload(port).json()["bytes"] == 100_000


def test_an_upload_that_trickles_is_none_that_makes_progress() -> None:
    with server(pace_seconds=0.3) as port, ExitStack() as stack:
        connection = begin(stack, port)
        connection.settimeout(0.01)
        answer = b""
        while not answer:
            connection.sendall(b"x")
            with suppress(TimeoutError):
                answer = connection.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_an_upload_that_keeps_its_pace_may_take_longer() -> None:
    with server(pace_bytes=1, pace_seconds=30.0) as port, ExitStack() as stack:
        connection = begin(stack, port)
        others = [begin(stack, port) for _ in range(MAX_UPLOADS - 1)]
        while upload(port).status_code != 503:
            pass  # not all of them have arrived
        connection.sendall(b"x" * (1000000 - len(BEGUN) - len(END)) + END)
        assert b"HTTP/1.1 200 " in connection.recv(1 << 16)
        others[0].close()
        while upload(port).status_code != 200:
            pass


END = b'\r\n--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n'
