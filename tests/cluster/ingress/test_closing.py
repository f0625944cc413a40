"""HAProxy is closed: whoever is connected gets an answer, and nobody else gets in."""

import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster.ingress import closing
from cluster.ingress.closing import close_haproxy, is_haproxy_closed
from cluster.ingress.haproxy import CLOSED
from tests.cluster.api.scripted import listening
from tests.cluster.ingress.haproxies import running
from tests.cluster.ingress.test_haproxy import gateway

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


def test_who_is_connected_is_answered_and_the_port_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(gateway) as port, running(tmp_path, [port]) as haproxy, haproxy.connect() as kept:
        kept.sendall(REQUEST)
        assert b"connection: close" not in answer(kept)
        files = SimpleNamespace(config_file_path=str(tmp_path / "c"), cfg=SimpleNamespace(socket_path=haproxy.admin))
        manager = SimpleNamespace(_haproxy=files)
        close_haproxy(manager)
        while is_open(haproxy.port):
            pass
        kept.sendall(REQUEST)
        assert b"connection: close" in answer(kept)
        assert kept.recv(1) == b""
        assert closing._closed.wait(30) and is_haproxy_closed(manager)
    assert (tmp_path / CLOSED).exists()


def test_a_haproxy_that_ends_meanwhile_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for it would wait for ever."""
    monkeypatch.setattr(closing, "_closed", threading.Event())
    path = str(tmp_path / "admin")

    def end_instead_of_answering() -> None:
        with suppress(OSError):  # at the end
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1 << 16)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        server = threading.Thread(target=end_instead_of_answering)
        server.start()
        files = SimpleNamespace(config_file_path=str(tmp_path / "c"), cfg=SimpleNamespace(socket_path=path))
        close_haproxy(SimpleNamespace(_haproxy=files))
        is_closed = closing._closed.wait(30)
        listener.shutdown(socket.SHUT_RDWR)
        server.join()
    assert is_closed


def answer(connection: socket.socket) -> bytes:
    """The head of one."""
    told = b""
    while b"\r\n\r\n" not in told or not told.endswith(b"}"):
        told += connection.recv(1 << 16)
    return told.partition(b"\r\n\r\n")[0]


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=30).close()
    except ConnectionRefusedError:
        return False
    return True
