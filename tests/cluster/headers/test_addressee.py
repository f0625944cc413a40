"""Ports that change hands: HAProxy means one server by them, and another process has them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from ray.serve._private.haproxy import HAProxyManager
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.api.edge.connection import Connection
from cluster.headers.addressee import SERVER, server_name
from cluster.ingress.closing import ask
from cluster.ingress.environment import BUFFER_BYTES
from tests.cluster.api.scripted import listening
from tests.cluster.ingress.haproxies import SECONDS, HAProxy, running
from tests.end_to_end.test_replica_lost import wait_until


def saying(name: str) -> ASGIApp:
    """An application that names the cluster it is of."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()
        await PlainTextResponse(name)(scope, receive, send)

    return app


@contextlib.contextmanager
def server(cluster: str, name: str) -> Iterator[int]:
    """Of a gateway or proxy of this cluster, which has this name; its port."""

    class Named(Connection):
        server_name = name.encode()

    with listening(saying(cluster), http=Named) as port:
        yield port


def answers(
    haproxy: HAProxy, num: int = 8, size: int = 0, headers: dict[str, str] | None = None
) -> set[tuple[int, str]]:
    """To requests on connections of their own: their status, and the cluster or the code."""
    found = set()
    for _ in range(num):
        url = f"http://127.0.0.1:{haproxy.port}/"
        answer = httpx.post(url, content=b"x" * size, headers=headers, timeout=SECONDS)
        found.add((answer.status_code, answer.text if answer.status_code == 200 else answer.json()["error"]["code"]))
    return found


@pytest.mark.parametrize("size", [0, 1000, BUFFER_BYTES // 2])
def test_another_clusters_gateway_at_the_port_of_a_gateway_is_passed_over(tmp_path: Path, size: int) -> None:
    with (
        server("one", "gateway-1") as own,
        server("two", "gateway-of-two") as others,
        running(tmp_path, [others, own]) as haproxy,
    ):
        assert answers(haproxy, size=size) == {(200, "one")}
        assert answers(haproxy, size=size, headers={SERVER: "gateway-of-two"}) == {(200, "one")}


@pytest.mark.parametrize("size", [0, 1000, 30 << 20])
def test_another_clusters_gateway_never_answers(tmp_path: Path, size: int) -> None:
    """A large request cannot be sent again."""
    with server("two", "gateway-of-two") as others, running(tmp_path, [others]) as haproxy:
        assert answers(haproxy, num=2, size=size) <= {(503, "gateway_lost"), (503, "not_ready")}


def test_another_clusters_gateway_is_soon_not_asked(tmp_path: Path) -> None:
    """HAProxy's checks name the server, too."""
    with (
        server("one", "fallback") as own,
        server("two", "gateway-of-two") as others,
        running(tmp_path, [others], own) as haproxy,
    ):
        wait_until(lambda: is_up(haproxy) == {"gateway-0": False, "fallback": True}, "both are asked")
        assert answers(haproxy, size=30 << 20, num=1) == {(200, "one")}


def is_up(haproxy: HAProxy) -> dict[str, bool]:
    lines = [line.split(",") for line in ask(haproxy.admin, "show stat").splitlines()]
    servers = [line for line in lines if line[0] == "http-squadron" and line[1] != "BACKEND"]
    return {line[1]: line[17].startswith("UP") for line in servers}


def test_the_name_is_the_one_that_serves_manager_writes() -> None:
    safe_name = HAProxyManager.__ray_metadata__.modified_class.get_safe_name
    for name in ("SERVE_REPLICA::squadron#GatewayDeployment#a1b2c3d4", "SERVE_PROXY_ACTOR-0123abcd", "a/b ü::#-_.c"):
        assert server_name(name) == safe_name(name)
