"""Serve's own proxy with TLS: real clients, and a certificate that is replaced."""

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from cluster.api.edge.connection import Connection
from cluster.api.edge.server import ProxyServer
from cluster.api.edge.tls import RenewedContext
from cluster.certificate import CertificateFiles
from engine.errors import InvalidConfig
from tests.cluster.certificates import Authority, make_authority, name_served

SECONDS = 120.0


class Slow:
    """An application whose answer begins, and ends when it is told to."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["scheme"].encode(), "more_body": True})
        await asyncio.to_thread(self.may_end.wait, SECONDS)
        await send({"type": "http.response.body", "body": b" end"})


class HastyServer(ProxyServer):
    async def linger(self) -> None:
        return


class InnerServer(ProxyServer):
    is_behind_haproxy = True


@pytest.fixture
def authority() -> Authority:
    return make_authority()


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> CertificateFiles:
    return authority.issue(tmp_path, "first")


@pytest.fixture
def app() -> Slow:
    return Slow()


@pytest.fixture
def port(app: Slow, files: CertificateFiles) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    port: int = listener.getsockname()[1]
    server = HastyServer(uvicorn.Config(app, http=Connection, lifespan="off", log_level="critical"))
    server.certificate = files  # type: ignore[misc]  # of all servers of a process
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield port
    app.may_end.set()
    server.should_exit = True
    thread.join()
    ProxyServer.in_this_process.remove(server)


def test_a_new_certificate_leaves_streams_alone(port: int, app: Slow, authority: Authority, tmp_path: Path) -> None:
    with httpx.stream("GET", f"https://127.0.0.1:{port}", verify=authority.trusted, timeout=SECONDS) as answer:
        body = answer.iter_raw()
        assert next(body) == b"https"
        assert name_served(authority, port) == "first"
        authority.issue(tmp_path, "second")
        while name_served(authority, port) != "second":
            pass
        app.may_end.set()
        assert b"".join(body) == b" end"


def test_without_the_authority_there_is_no_connection(port: int) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"https://127.0.0.1:{port}", timeout=SECONDS)


def test_between_haproxy_and_gateways_there_is_none(app: Slow, files: CertificateFiles) -> None:
    config = uvicorn.Config(app, ssl_certfile=files.certfile, ssl_keyfile=files.keyfile)
    with pytest.raises(InvalidConfig, match=f"ssl_certfile={files.certfile} is not for HAProxy: set SQUADRON_SSL"):
        InnerServer(config)


def test_a_bad_replacement_is_not_taken(
    files: CertificateFiles, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="ray.serve"):
        renewed = RenewedContext(files)
        renewed.look()
        assert caplog.messages == []
        Path(files.keyfile).write_bytes(b"nonsense")
        renewed.look()
        renewed.look()
        authority.issue(tmp_path, "third")
        renewed.look()
    assert caplog.messages == [
        f"The certificate stays as it was: ssl_keyfile={files.keyfile} has no private key in PEM",
        f"New connections get the new certificate of {files.certfile}",
    ]


def test_a_certificate_is_taken_once_its_time_has_come(
    files: CertificateFiles,
    authority: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock of who has issued it may be ahead of this machine's."""
    renewed = RenewedContext(files)
    authority.issue(tmp_path, "second")
    with caplog.at_level(logging.INFO, logger="ray.serve"):
        with monkeypatch.context() as patch:
            patch.setattr("cluster.certificate._check_time", begins)
            renewed.look()
            renewed.look()
        renewed.look()
        renewed.look()
    assert caplog.messages == [
        f"The certificate stays as it was: ssl_certfile={files.certfile} begins later",
        f"New connections get the new certificate of {files.certfile}",
    ]


def begins(path: str, _certificate: object) -> None:
    raise InvalidConfig(f"ssl_certfile={path} begins later")


async def test_a_look_that_fails_unforeseen_is_not_the_last(
    files: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.api.edge.tls.LOOK_SECONDS", 0.01)
    renewed, looked = RenewedContext(files), asyncio.Queue[None]()

    def look() -> None:
        looked.put_nowait(None)
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(renewed, "look", look)
    keeping = asyncio.create_task(renewed.keep())
    async with asyncio.timeout(SECONDS):
        for _ in range(2):
            await looked.get()
    keeping.cancel()
