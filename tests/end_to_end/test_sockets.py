"""Every socket on which `squadron serve` and what it starts listen, as the kernel tells, and what
is answered on them.
"""

import socket
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import httpx
import pytest

from cluster.api.edge.hosts import is_loopback
from tests.end_to_end.chaos.processes import PROXY
from tests.end_to_end.commands import serve
from tests.end_to_end.conftest import LOOPBACK, free_port
from tests.end_to_end.test_command import processes_with
from tests.listeners import Listener, listeners_of

REPLICA = "ray::ServeReplica"


@dataclass(frozen=True, slots=True)
class Serving:
    port: int
    said: list[str]
    listeners: list[Listener]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """`squadron serve` on every network, without a key."""
    options = ("--host", "0.0.0.0", "--insecure-no-key", "-tp", "2")
    with serve(tmp_path_factory.mktemp("sockets"), free_port(), *options) as command:
        command.wait_until_ready()
        listeners = [each for pid in processes_with(command.mark) for each in listeners_of(pid)]
        yield Serving(command.port, command.said, listeners)


def test_only_http_and_serves_replicas_listen_off_loopback(serving: Serving) -> None:
    """HTTP as it was asked to, and one gRPC port of each replica, which Serve gives no address to;
    it wants Ray's token.
    """
    for name in ("ray::ServeController", PROXY, REPLICA, "ray::WorkerActor"):
        assert any(each.process.startswith(name) for each in serving.listeners), name  # nobody was passed over
    public = [each for each in serving.listeners if not is_loopback(each.host)]
    assert [each.port for each in public if each.process.startswith(PROXY)] == [serving.port]
    others = [each for each in public if each.port != serving.port]
    replicas = sorted(each.process.rpartition(":")[2].partition(".")[0] for each in others)  # without what they do now
    assert replicas == ["EngineDeployment", "GatewayDeployment"]
    for each in others:
        assert each.process.startswith(REPLICA) and each.host == "::"
        with grpc.insecure_channel(f"{LOOPBACK}:{each.port}") as channel:
            call = channel.unary_unary("/ray.serve.ASGIService/HandleRequest")
            with pytest.raises(grpc.RpcError) as refused:
                call(b"", timeout=60)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_an_open_server_says_so(serving: Serving) -> None:
    assert f"No API key: anyone who can reach port {serving.port} can send requests\n" in serving.said


def test_without_a_key_debugging_is_for_clients_on_this_machine(serving: Serving) -> None:
    local = f"http://{LOOPBACK}:{serving.port}"
    assert httpx.get(f"{local}/debug/engines", timeout=60).status_code == 200
    assert httpx.get(f"{local}/debug/engines", headers={"x-forwarded-for": "127.0.0.1"}).status_code == 403
    remote = f"http://{network_address()}:{serving.port}"
    assert httpx.get(f"{remote}/v1/models", timeout=60).status_code == 200
    for name in ("x-nothing", "x-forwarded-for", "forwarded", "x-real-ip"):
        refused = httpx.get(f"{remote}/debug/engines", headers={name: "127.0.0.1"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "key_or_loopback_needed")


def network_address() -> str:
    """One of this machine's, off loopback; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unconnected:
        try:
            unconnected.connect(("192.0.2.254", 9))
        except OSError:
            pytest.skip("this machine has no network")
        host: str = unconnected.getsockname()[0]
    return host
