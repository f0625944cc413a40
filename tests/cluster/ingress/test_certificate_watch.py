"""A real HAProxy with TLS: real clients, and a certificate that is replaced."""

import asyncio
import codecs
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from cluster.certificate import CertificateFiles
from cluster.ingress.haproxy import LOG_FORMAT
from cluster.ingress.haproxy_configuration import CERTIFICATE
from tests.cluster.api.scripted import listening
from tests.cluster.certificates import Authority, make_authority, name_served
from tests.cluster.ingress.haproxies import SECONDS, HAProxy, running

may_end = threading.Event()


async def gateway(scope: Scope, receive: Receive, send: Send) -> None:
    """Begins its answer, and ends it when it is told to."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"begin", "more_body": True})
    await asyncio.to_thread(may_end.wait, SECONDS)
    await send({"type": "http.response.body", "body": b" end"})


@pytest.fixture(scope="module")
def authority() -> Authority:
    return make_authority()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the certificate."""
    return tmp_path_factory.mktemp("certificate")


@pytest.fixture(scope="module")
def haproxy(authority: Authority, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HAProxy]:
    files = authority.issue(folder, "first")
    place = tmp_path_factory.mktemp("haproxy")
    with listening(gateway) as port, running(place, [port], certificate=files) as haproxy:
        yield haproxy


def test_a_new_certificate_leaves_streams_alone(haproxy: HAProxy, authority: Authority, folder: Path) -> None:
    url = f"https://127.0.0.1:{haproxy.port}"
    with httpx.stream("GET", url, verify=authority.trusted, timeout=SECONDS) as answer:
        body = answer.iter_raw()
        assert (next(body), answer.http_version) == (b"begin", "HTTP/1.1")
        assert name_served(authority, haproxy.port) == "first"
        authority.issue(folder, "second")
        while name_served(authority, haproxy.port) != "second":
            pass
        may_end.set()
        assert b"".join(body) == b" end"
    assert (haproxy.folder / CERTIFICATE).stat().st_mode & 0o777 == 0o600


def test_a_bad_replacement_is_not_taken(haproxy: HAProxy, authority: Authority, folder: Path) -> None:
    before = name_served(authority, haproxy.port)
    assert haproxy.process.stderr is not None
    (folder / "key.pem").write_bytes(b"nonsense")
    while b"keeps its certificate: ssl_keyfile=" not in (line := haproxy.process.stderr.readline()):
        assert line, "HAProxy has ended"
    assert f"{folder / 'key.pem'} has no private key in PEM" in line.decode()
    assert name_served(authority, haproxy.port) == before


def test_it_is_taken_once_haproxy_can_be_asked(haproxy: HAProxy, authority: Authority, folder: Path) -> None:
    assert haproxy.process.stderr is not None
    admin, away = Path(haproxy.admin), haproxy.folder / "away"
    admin.rename(away)
    authority.issue(folder, "third")
    while b"keeps its certificate: [Errno 2]" not in (line := haproxy.process.stderr.readline()):
        assert line, "HAProxy has ended"
    away.rename(admin)
    while name_served(authority, haproxy.port) != "third":
        pass


def test_a_new_one_may_begin_with_a_byte_order_mark(haproxy: HAProxy, authority: Authority, folder: Path) -> None:
    certfile, keyfile = (Path(path) for path in astuple(authority.issue(folder.parent, "marked")))
    for new, name in ((keyfile, "key.pem"), (certfile, "cert.pem")):
        new.write_bytes(codecs.BOM_UTF8 + new.read_bytes())
        new.rename(folder / name)
    while name_served(authority, haproxy.port) != "marked":
        pass


def test_it_is_watched_after_a_successor_of_haproxy_has_failed(
    haproxy: HAProxy, authority: Authority, folder: Path
) -> None:
    with subprocess.Popen(["sleep", "infinity"]) as successor:
        pem = haproxy.folder / CERTIFICATE
        watch = [sys.executable, "-m", "cluster.ingress.certificate_watch", str(successor.pid), str(pem), haproxy.admin]
        files = CertificateFiles(str(folder / "cert.pem"), str(folder / "key.pem"))
        with subprocess.Popen(watch, env=os.environ | files.environment) as its_watch:
            while pem.with_suffix(".watch").read_text() != str(its_watch.pid):
                assert its_watch.poll() is None
            successor.kill()
            assert its_watch.wait() == 0
    authority.issue(folder, "after")
    while name_served(authority, haproxy.port) != "after":
        pass
    assert pem.with_suffix(".watch").read_text() != str(its_watch.pid)


def test_the_watch_ends_when_another_haproxy_is_in_place(authority: Authority, tmp_path: Path) -> None:
    files = authority.issue(tmp_path, "first")
    place = tmp_path / "haproxy"
    place.mkdir()
    file = (place / CERTIFICATE).with_suffix(".watch")
    with running(place, [1], certificate=files) as haproxy:
        while not file.exists():
            assert haproxy.process.poll() is None
        watch = os.pidfd_open(int(file.read_text()))
        with running(place, [1], certificate=files):
            assert select.select([watch], [], [], SECONDS)[0]
        os.close(watch)
        assert haproxy.process.poll() is None


def test_its_log_is_json_where_others_are(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOG_FORMAT, "json")
    files = authority.issue(tmp_path, "first")
    with listening(gateway) as port, running(tmp_path, [port], certificate=files) as haproxy:
        (tmp_path / "key.pem").write_bytes(b"nonsense")
        assert haproxy.process.stderr is not None
        while not (line := haproxy.process.stderr.readline()).startswith(b"{"):
            assert line, "HAProxy has ended"
    told = json.loads(line)
    assert told.keys() == {"levelname", "asctime", "component_name", "message"}
    assert (told["levelname"], told["component_name"]) == ("ERROR", "certificate")
    assert told["message"].startswith("HAProxy keeps its certificate: ssl_keyfile=")


def test_who_does_not_speak_tls_gets_nothing(haproxy: HAProxy) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"http://127.0.0.1:{haproxy.port}", timeout=SECONDS)


def test_a_wrong_pair_does_not_listen(authority: Authority, tmp_path: Path) -> None:
    files = authority.issue(tmp_path)
    mixed = CertificateFiles(files.certfile, str(tmp_path / "other.pem"))
    os.rename(files.keyfile, mixed.keyfile)
    Path(mixed.keyfile).write_bytes(b"nonsense")
    with (
        pytest.raises(AssertionError, match=r"^ssl_keyfile=\S+ has no private key in PEM\n$"),
        running(tmp_path, [1], certificate=mixed),
    ):
        pass


def test_another_servers_certificate_is_not_served(authority: Authority, tmp_path: Path) -> None:
    """Serve may be told of other files when it is started again on a node."""
    place, first, second = (tmp_path / name for name in ("haproxy", "first", "second"))
    for folder in (place, first, second):
        folder.mkdir()
    files, others = authority.issue(first, "first"), authority.issue(second, "second")
    for each, name in ((files, "first"), (others, "second")):
        with running(place, [1], certificate=each) as haproxy:
            assert name_served(authority, haproxy.port) == name
    Path(others.keyfile).write_bytes(b"nonsense")
    with running(place, [1], certificate=others) as haproxy:  # as when Serve's manager has died
        assert name_served(authority, haproxy.port) == "second"
    Path(files.certfile).unlink()
    told = pytest.raises(AssertionError, match=r"^ssl_certfile=\S+ cannot be read: No such file or directory\n$")
    with told, running(place, [1], certificate=files):
        pass
