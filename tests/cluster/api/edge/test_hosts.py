"""Which Host headers are answered, and who may look at /debug without a key."""

import socket
from collections.abc import Iterator

import httpx
import pytest

from cluster.api.edge.hosts import ANY, LOOPBACK_HOSTS, AllowedHosts, check_open, default_hosts, is_loopback
from cluster.api.edge.middleware import Edge
from cluster.api.keys.key_ring import KeyRing
from cluster.launch.app import build_app
from engine.errors import InvalidConfig
from tests.cluster.api.scripted import Running, running

DEBUG_PATHS = ["/debug/engines", "/debug/trace", "/debug/why/known"]


@pytest.mark.parametrize(
    ("header", "is_allowed"),
    [
        (b"localhost", True),
        (b"LOCALHOST:8000", True),
        (b"localhost.", True),
        (b"app.localhost:1", True),
        (b"127.0.0.1:8000", True),
        (b"[::1]:8000", True),
        (b"[::1]", True),
        (b"", False),
        (b"evil.example", False),
        (b"evil.example:8000", False),
        (b"127.0.0.1.evil.example", False),
        (b"localhost.evil.example", False),
        (b"notlocalhost", False),
        (b"evil.example@localhost", False),
        (b"localhost:8000@evil.example", False),
        (b"localhost/evil.example", False),
        (b"localhost, evil.example", False),
        (b"127.0.0.2", False),
        (b"::1", False),
        (b"\xff", False),
    ],
)
def test_hosts_of_loopback(header: bytes, is_allowed: bool) -> None:
    assert AllowedHosts(LOOPBACK_HOSTS).allows(header) == is_allowed


@pytest.mark.parametrize(
    ("hosts", "header", "is_allowed"),
    [
        ([ANY], b"evil.example", True),
        ([ANY], b"", True),
        (["Api.Example.com"], b"api.example.com:443", True),
        (["*.example.com"], b"api.example.com", True),
        (["*.example.com"], b"a.b.example.com", True),
        (["*.example.com"], b"example.com", False),
        (["*.example.com"], b"example.com.evil.example", False),
        (["2001:DB8:0::1"], b"[2001:db8::1]:80", True),
        (["[2001:db8::1]"], b"[2001:db8::1]", True),
        (["192.0.2.1"], b"192.0.2.10", False),
    ],
)
def test_hosts_that_are_given(hosts: list[str], header: bytes, is_allowed: bool) -> None:
    assert AllowedHosts(hosts).allows(header) == is_allowed


@pytest.mark.parametrize("host", ["", "example.com:80", "http://example.com", "a b", "*example.com", "exa*ple.com"])
def test_hosts_refused(host: str) -> None:
    with pytest.raises(InvalidConfig, match="allowed_hosts"):
        build_app({"engine": {"model": "configs/demo"}, "allowed_hosts": [host]})


def test_an_application_that_nobody_could_ask_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="nobody could ask"):
        build_app({"engine": {"model": "configs/demo"}, "allowed_hosts": []})


def test_the_default_depends_on_where_a_server_listens() -> None:
    assert default_hosts("127.0.0.2") == (*LOOPBACK_HOSTS, "127.0.0.2")
    assert default_hosts("::1")[:-1] == default_hosts("localhost")[:-1] == LOOPBACK_HOSTS
    assert default_hosts("0.0.0.0") == default_hosts("::") == default_hosts("192.0.2.1") == (ANY,)
    assert is_loopback("::ffff:127.0.0.1") and not is_loopback("::ffff:192.0.2.1") and not is_loopback("example.com")


@pytest.fixture(scope="module")
def local() -> Iterator[httpx.Client]:
    with (
        running(allowed_hosts=LOOPBACK_HOSTS, api_keys=KeyRing(["key"])) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        yield client


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/openapi.json", "/debug/engines", "/nowhere"])
@pytest.mark.parametrize("authorization", ["", "Bearer key"])
def test_another_host_is_refused_with_and_without_a_key(local: httpx.Client, path: str, authorization: str) -> None:
    response = local.get(path, headers={"host": "evil.example", "authorization": authorization})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (403, "host_not_allowed", "permission_error")
    assert "evil.example" in error["message"] and "--allowed-hosts" in error["message"]


def test_the_right_host_is_answered(local: httpx.Client) -> None:
    assert local.get("/health").status_code == local.get("/health", headers={"host": "localhost:1"}).status_code == 200


@pytest.mark.parametrize("hosts", [b"", b"host: localhost\r\nhost: evil.example\r\n"])
def test_no_host_and_two(local: httpx.Client, hosts: bytes) -> None:
    with socket.create_connection((local.base_url.host, local.base_url.port or 0), timeout=60) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nconnection: close\r\n" + hosts + b"\r\n")
        assert connection.recv(12) == b"HTTP/1.1 403"


async def status(client: str | None, path: str, headers: list[tuple[bytes, bytes]], keys: tuple[str, ...] = ()) -> int:
    """What a client at this address gets."""
    sent: list[int] = []

    async def app(_scope: object, _receive: object, send: object) -> None:
        sent.append(200)

    async def send(message: dict[str, object]) -> None:
        sent.extend(message[name] for name in ("status",) if name in message)  # type: ignore[misc]

    scope = {
        "type": "http",
        "path": path,
        "headers": headers,
        "method": "GET",
        "client": None if client is None else (client, 1),
    }
    await Edge(app, api_keys=KeyRing(keys))(scope, app, send)  # type: ignore[arg-type]
    return sent[0]


@pytest.mark.parametrize("path", DEBUG_PATHS)
async def test_debug_without_a_key_is_for_this_machine_only(path: str) -> None:
    for client in ("127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1"):
        assert await status(client, path, []) == 200
        for name in (b"x-forwarded-for", b"forwarded"):  # whoever it was forwarded for need not be here
            assert await status(client, path, [(name, b"127.0.0.1")]) == 403
    for client in ("192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1", "", "unix", None):
        assert await status(client, path, []) == 403
        assert await status(client, path, [(b"x-forwarded-for", b"127.0.0.1")]) == 403
        assert await status(client, path, [(b"authorization", b"Bearer key")], keys=("key",)) == 200
        assert await status(client, path, [], keys=("key",)) == 401
        assert await status(client, "/v1/models", []) == 200


@pytest.mark.parametrize("path", DEBUG_PATHS)
def test_debug_from_here(server: Running, http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 200
    refused = http.get(path, headers={"x-forwarded-for": "127.0.0.1"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "key_or_loopback_needed")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_everybody_is_let_in_only_where_that_is_said(host: str) -> None:
    with pytest.raises(InvalidConfig, match=f"host='{host}' can be reached .* --insecure-no-key"):
        check_open(host, has_keys=False, insecure_no_key=False)
    check_open(host, has_keys=False, insecure_no_key=True)
    check_open(host, has_keys=True, insecure_no_key=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_needs_no_key(host: str) -> None:
    check_open(host, has_keys=False, insecure_no_key=False)


def test_keys_that_would_be_ignored() -> None:
    with pytest.raises(InvalidConfig, match="insecure_no_key is for a server without API keys, and there are some"):
        check_open("127.0.0.1", has_keys=True, insecure_no_key=True)
