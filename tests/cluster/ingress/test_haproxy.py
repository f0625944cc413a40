"""What Serve's HAProxy does with our configuration, and what it must not."""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from cluster.api.errors import ApiError, error_body
from cluster.ingress.closing import ask
from cluster.ingress.environment import BUFFER_BYTES, PROGRAM
from cluster.ingress.haproxy import CLOSED, check_folder
from cluster.ingress.haproxy_configuration import ERRORS, UNREAD_SECONDS
from cluster.sockets import LOOPBACK
from tests.cluster.api.scripted import listening
from tests.cluster.ingress.haproxies import SECONDS, HAProxy, configuration, running
from tests.end_to_end.conftest import free_port
from tests.end_to_end.networks import network_address
from tests.listeners import listeners_of

ROOT = Path(__file__).parents[3]
IN_NAMESPACE = ("unshare", "--map-root-user", "--net")
OTHER = "2001:db8::5"  # an address of this machine there


async def gateway(scope: Scope, receive: Receive, send: Send) -> None:
    """Tells what it was sent."""
    request = Request(scope, receive)
    told = {"method": request.method, "headers": request.headers.items(), "size": len(await request.body())}
    await JSONResponse(told)(scope, receive, send)


@pytest.fixture(scope="module")
def haproxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HAProxy]:
    """On every network, before one gateway."""
    with listening(gateway) as port, running(tmp_path_factory.mktemp("haproxy"), [port], host="0.0.0.0") as haproxy:
        yield haproxy


def url(haproxy: HAProxy, path: str = "/", host: str = LOOPBACK) -> str:
    return f"http://{host}:{haproxy.port}{path}"


def test_it_listens_where_it_is_told_to_and_nowhere_else(haproxy: HAProxy) -> None:
    (listener,) = listeners_of(haproxy.process.pid)
    assert (listener.host, listener.port) == ("0.0.0.0", haproxy.port)
    assert os.stat(haproxy.admin).st_mode & 0o777 == 0o600
    assert haproxy.folder.stat().st_mode & 0o777 == 0o700


def test_who_takes_nothing_of_an_answer_is_given_up(haproxy: HAProxy) -> None:
    """By the kernel; T17 of the chaos runs waits for it."""
    (bind,) = [line for line in (haproxy.folder / "c").read_text().splitlines() if line.strip().startswith("bind ")]
    assert bind.endswith(f" tcp-ut {UNREAD_SECONDS}s")


def test_who_comes_from_another_machine_is_named(haproxy: HAProxy) -> None:
    named = [("x-forwarded-for", network_address())]
    for sent in ({}, {"x-forwarded-for": "127.0.0.1"}):
        given = [(name, value) for name, value in sent.items()]
        assert forwarded(url(haproxy, host=LOOPBACK), sent) == given
        assert forwarded(url(haproxy, host=network_address()), sent) == given + named


@pytest.mark.parametrize("address", ["2002:7f00:1::1", "::127.0.0.9"], ids=["6to4", "IPv4-compatible"])
def test_an_address_with_that_of_loopback_in_it_is_not_loopback(address: str, tmp_path: Path) -> None:
    """In a network namespace of the test's own, of which any user is root."""
    if shutil.which("ip") is None or subprocess.run([*IN_NAMESPACE, "true"], capture_output=True).returncode != 0:
        pytest.skip("no namespaces can be made here")
    begin = f'ip link set lo up && ip addr add {address}/128 dev lo && ip addr add {OTHER}/128 dev lo && exec "$@"'
    ask = f"from {__name__} import named; from pathlib import Path; print(named({address!r}, Path({str(tmp_path)!r})))"
    command = [*IN_NAMESPACE, "sh", "-c", begin, "sh", sys.executable, "-c", ask]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == f"{[address]}\n", done.stderr


def named(address: str, folder: Path) -> list[str]:
    """Who has sent a request from there, as the gateway is told."""
    transport = httpx.HTTPTransport(local_address=address)
    with (
        listening(gateway) as port,
        running(folder, [port], host="::") as haproxy,
        httpx.Client(transport=transport, timeout=SECONDS) as client,
    ):
        headers = client.get(f"http://[{OTHER}]:{haproxy.port}/").json()["headers"]
    return [value for name, value in headers if name == "x-forwarded-for"]


def forwarded(url: str, headers: dict[str, str]) -> list[tuple[str, str]]:
    got = httpx.get(url, headers=headers).json()["headers"]
    return [(name, value) for name, value in got if name == "x-forwarded-for"]


def test_serves_routes_are_nobodys_business_and_its_health_is(haproxy: HAProxy) -> None:
    response = httpx.get(url(haproxy, "/-/routes"))
    assert (response.status_code, response.json()["error"]["code"]) == (404, "unknown_url")
    assert httpx.get(url(haproxy, "/-/healthz")).text == "success"


@pytest.mark.parametrize("size", [0, 1, BUFFER_BYTES, 30 << 20])
def test_bodies_of_any_size_pass(haproxy: HAProxy, size: int) -> None:
    assert httpx.post(url(haproxy), content=b"x" * size, timeout=SECONDS).json()["size"] == size


@pytest.mark.parametrize("value", [b"\xff\xfe", b"x" * (60 << 10)], ids=["not UTF-8", "60 KiB"])
def test_headers_pass(haproxy: HAProxy, value: bytes) -> None:
    told = httpx.get(url(haproxy), headers=[(b"x-request-id", value)]).json()
    assert ["x-request-id", value.decode("latin-1")] in told["headers"]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"CONNECT x:1 HTTP/1.1\r\nhost: x:1\r\n\r\n", b"405"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400"),
        (b"\x16\x03\x01\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"x" * BUFFER_BYTES + b"\r\n\r\n", b"400"),
    ],
    ids=["CONNECT", "HTTP/2", "TLS", "huge head"],
)
def test_what_is_no_request_is_refused(haproxy: HAProxy, request_: bytes, status: bytes) -> None:
    with haproxy.connect() as connection:
        connection.sendall(request_)
        assert connection.recv(1 << 16).split()[:2] == [b"HTTP/1.1", status]


def test_a_body_that_does_not_come_is_told_of(haproxy: HAProxy) -> None:
    with haproxy.connect() as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nbegin")
        head, _, body = connection.recv(1 << 16).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    told = json.loads(body)["error"]
    assert told["code"] == "request_timeout"
    assert told["message"] == "The beginning of the request's body did not come within 10 s"


def test_errors_have_the_form_of_the_gateways() -> None:
    for answer in ERRORS.values():
        error = ApiError(int(answer.status[:3]), answer.message, code=answer.code)
        assert json.loads(answer.body) == json.loads(error_body(error))
        assert answer.file().endswith(f"\r\n\r\n{answer.body}")


def test_a_request_whose_gateway_is_not_there_reaches_another(tmp_path: Path) -> None:
    with listening(gateway) as port, running(tmp_path, [free_port(), free_port()], fallback=port) as haproxy:
        for _ in range(3):
            assert httpx.post(url(haproxy), content=b"body", timeout=SECONDS).json()["size"] == 4


def test_gateways_are_reached_where_they_listen(tmp_path: Path) -> None:
    """On the node's address, where other nodes reach them, too."""
    address = "127.0.0.9"
    with listening(gateway, address) as port, running(tmp_path, [port], node_address=address) as haproxy:
        assert httpx.post(url(haproxy), content=b"body", timeout=SECONDS).json()["size"] == 4


def die_of_a_request(listener: socket.socket) -> None:
    """As a gateway: answers HAProxy's checks, and closes everything once it has a whole request."""
    with listener:
        while True:
            connection, _ = listener.accept()
            with connection:
                got = connection.recv(1 << 16)
                while not got.endswith(b"body" if got.startswith(b"POST") else b"\r\n\r\n"):
                    got += connection.recv(1 << 16)
                if got.startswith(b"POST"):
                    return
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")


@pytest.mark.parametrize("attempt", range(3))
def test_a_request_whose_gateway_dies_reaches_another(tmp_path: Path, attempt: int) -> None:
    """Also one whose body comes after its head, as most clients send it."""
    dying = socket.create_server((LOOPBACK, 0))
    place = dying.getsockname()[1]
    with ThreadPoolExecutor(1) as threads, listening(gateway) as port:
        died = threads.submit(die_of_a_request, dying)
        with running(tmp_path, [place], fallback=port) as haproxy, haproxy.connect() as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\nconnection: close\r\n\r\n")
            ask(haproxy.admin, "show info")  # HAProxy, one thread, has seen the head
            connection.sendall(b"body")
            answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        died.result(SECONDS)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert (head.split()[1], json.loads(body)["size"]) == (b"200", 4)


def test_without_any_gateway_it_says_so(tmp_path: Path) -> None:
    with running(tmp_path, [free_port()]) as haproxy:
        response = httpx.post(url(haproxy), content=b"body", timeout=SECONDS)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "not_ready")
        assert response.headers["retry-after"] == "1"


def test_a_folder_of_others_is_not_read(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(SystemExit, match="is not a folder of this user"):
        check_folder(link)


def test_once_closed_it_does_not_start_again(tmp_path: Path) -> None:
    path = configuration(tmp_path, free_port(), [])
    (tmp_path / CLOSED).touch()
    done = subprocess.run([*PROGRAM, "-db", "-f", path], capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (1, "the port has been closed for good\n")


MANAGER = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); sys.stdin.read()"


def test_it_ends_with_its_manager(tmp_path: Path) -> None:
    """So that the next manager's can have the port."""
    command = [*PROGRAM, "-db", "-f", configuration(tmp_path, free_port(), [])]
    manager = subprocess.Popen(
        [sys.executable, "-c", MANAGER, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert manager.stdout is not None
    pidfd = os.pidfd_open(int(manager.stdout.readline()))
    with manager:
        while not (tmp_path / "s").exists():
            assert not select.select([pidfd], [], [], 0.01)[0], "HAProxy has ended"
        manager.send_signal(signal.SIGKILL)
    assert select.select([pidfd], [], [], SECONDS)[0] == [pidfd]
    os.close(pidfd)
