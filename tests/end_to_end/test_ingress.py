"""Two `squadron serve` with HAProxy on one machine at once: who can reach what, and what happens
when its parts die.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest

from cluster.api.edge.hosts import is_loopback
from tests.end_to_end.chaos.processes import title_of
from tests.end_to_end.commands import Command, serve
from tests.end_to_end.conftest import LOOPBACK, free_port
from tests.end_to_end.networks import other_machine, why_not
from tests.end_to_end.test_command import processes_with
from tests.end_to_end.test_replica_lost import wait_until
from tests.end_to_end.test_sockets import REPLICA, Listener, listeners_of

GATEWAY = f"{REPLICA}:squadron:GatewayDeployment"
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Server(Command):
    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def pids(self, title: str) -> list[int]:
        """Of its processes whose command line has this in it."""
        return [pid for pid in processes_with(self.mark) if title in title_of(pid)]

    def listeners(self) -> list[Listener]:
        return [each for pid in processes_with(self.mark) for each in listeners_of(pid)]

    def says(self) -> str:
        with openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=SECONDS) as client:
            answer = client.completions.create(model=f"m{self.port}", prompt="once", max_tokens=3, temperature=0)
        return answer.choices[0].text


@contextlib.contextmanager
def starting(folder: Path, *, ingress: str = "haproxy") -> Iterator[Server]:
    """Not awaited; its model has the port in its name."""
    port = free_port()
    with serve(folder, port, "--served-model-name", f"m{port}", "--ingress", ingress) as command:
        yield Server(command.process, command.port, command.mark, command.said)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    with starting(tmp_path_factory.mktemp("one")) as one, starting(tmp_path_factory.mktemp("two")) as two:
        one.wait_until_ready()
        two.wait_until_ready()
        yield one, two


def test_it_says_what_listens(pair: tuple[Server, Server]) -> None:
    for command in pair:
        assert "Ingress: HAProxy\n" in command.said


def test_each_answers_for_itself(pair: tuple[Server, Server]) -> None:
    one, two = pair
    assert one.says() == two.says() != ""
    for command, other in ((one, two), (two, one)):
        models = httpx.get(f"{command.url}/v1/models").json()["data"]
        assert [model["id"] for model in models] == [f"m{command.port}"] != [f"m{other.port}"]


def test_only_serves_replicas_listen_off_loopback(pair: tuple[Server, Server]) -> None:
    """On one gRPC port each, to which Serve gives no address; it wants Ray's token."""
    for command in pair:
        listeners = command.listeners()
        assert [each.port for each in listeners if "haproxy -db" in each.process] == [command.port]
        assert len([each for each in listeners if each.process.startswith(GATEWAY)]) >= 2  # HTTP, too
        public = [each for each in listeners if not is_loopback(each.host)]
        assert sorted(title.rpartition(":")[2].partition(".")[0] for title in (each.process for each in public)) == [
            "EngineDeployment",
            "GatewayDeployment",
        ]


def test_another_machine_reaches_none_of_its_ports(pair: tuple[Server, Server]) -> None:
    if why_not():
        pytest.skip(why_not())
    listeners = [each for command in pair for each in command.listeners()]
    with other_machine() as other:
        reached = other.reaches({each.port for each in listeners})
    assert reached == {each.port for each in listeners if each.process.startswith(REPLICA) and each.host == "::"}


def test_debugging_is_for_clients_on_this_machine(pair: tuple[Server, Server]) -> None:
    debug = f"{pair[0].url}/debug/engines"
    assert httpx.get(debug, timeout=SECONDS).status_code == 200
    assert httpx.get(debug, headers={"x-forwarded-for": "127.0.0.1"}).status_code == 403


def test_a_request_waits_for_the_next_gateway(pair: tuple[Server, Server]) -> None:
    one, _ = pair
    before = one.says()
    (gateway,) = one.pids(GATEWAY)
    os.kill(gateway, signal.SIGKILL)
    assert one.says() == before
    wait_until(lambda: one.pids(GATEWAY) not in ([], [gateway]), "there is no other gateway")


def test_a_killed_haproxy_is_replaced(pair: tuple[Server, Server]) -> None:
    one, two = pair
    before = one.says()
    (haproxy,) = one.pids("haproxy -db")
    os.kill(haproxy, signal.SIGKILL)
    wait_until(lambda: one.pids("haproxy -db") not in ([], [haproxy]) and is_open(one), "there is no other HAProxy")
    assert one.says() == two.says() == before


def test_haproxy_goes_with_its_manager_and_comes_with_the_next(pair: tuple[Server, Server]) -> None:
    one, _ = pair
    (manager,) = one.pids("ray::HAProxyManager")
    (haproxy,) = one.pids("haproxy -db")
    os.kill(manager, signal.SIGKILL)
    wait_until(lambda: one.pids("haproxy -db") not in ([], [haproxy]) and is_open(one), "there is no other HAProxy")
    assert one.says()


def is_open(command: Server) -> bool:
    try:
        return httpx.get(f"{command.url}/health", timeout=SECONDS).status_code == 200
    except httpx.TransportError:
        return False
