"""Two `squadron serve` with HAProxy on one machine at once: who can reach what, and what happens
when its parts die, and when one's queue is full.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest

from cluster.api.edge.hosts import is_loopback
from cluster.headers.addressee import SERVER
from cluster.ingress.environment import FALLBACK_PORTS
from tests.cluster.certificates import make_authority, name_served
from tests.end_to_end.chaos.processes import title_of
from tests.end_to_end.commands import Command, serve
from tests.end_to_end.conftest import LOOPBACK, free_port
from tests.end_to_end.networks import network_address, other_machine, reached_at, why_not
from tests.end_to_end.test_command import processes_with, wait_until_gone
from tests.end_to_end.test_full_queue import OPTIONS, check_that_no_header_opens, full
from tests.end_to_end.test_replica_lost import wait_until
from tests.listeners import Listener, listeners_of

REPLICA = "ray::ServeReplica"
GATEWAY = f"{REPLICA}:squadron:GatewayDeployment"
PROXY = "ray::ProxyActor"  # Serve's own
GATEWAY_PORTS = range(30_000, 31_000)  # Serve's, of their HTTP
SECONDS = 300.0
AUTHORITY = make_authority()


@dataclass(frozen=True, slots=True)
class Server(Command):
    certificate: Path | None  # its folder, of one that `AUTHORITY` has issued; None: without TLS

    @property
    def url(self) -> str:
        return f"{'http' if self.certificate is None else 'https'}://{LOOPBACK}:{self.port}"

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", headers=headers, timeout=SECONDS, verify=AUTHORITY.trusted)

    def client(self) -> openai.OpenAI:
        http = httpx.Client(verify=AUTHORITY.trusted)
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=SECONDS, http_client=http
        )

    def pids(self, title: str) -> list[int]:
        """Of its processes whose command line has this in it."""
        return [pid for pid in processes_with(self.mark) if title in title_of(pid)]

    def listeners(self) -> list[Listener]:
        return [each for pid in processes_with(self.mark) for each in listeners_of(pid)]

    def says(self) -> str:
        with self.client() as client:
            answer = client.completions.create(model=f"m{self.port}", prompt="once", max_tokens=3, temperature=0)
        return answer.choices[0].text


@contextlib.contextmanager
def starting(
    folder: Path, *options: str, ingress: str = "haproxy", has_tls: bool = False, name: str | None = None
) -> Iterator[Server]:
    """Not awaited; its model has the port in its name if it has no other."""
    port = free_port()
    if has_tls:
        files = AUTHORITY.issue(folder, "first")
        options = (*options, "--ssl-certfile", files.certfile, "--ssl-keyfile", files.keyfile)
    with serve(folder, port, "--served-model-name", name or f"m{port}", "--ingress", ingress, *options) as command:
        yield Server(command.process, command.port, command.mark, command.said, folder if has_tls else None)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """The first one on every network, without a key, and with a short queue; the second one with
    TLS.
    """
    one_folder, two_folder = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    public = ("--host", "0.0.0.0", "--insecure-no-key", *OPTIONS)
    with starting(one_folder, *public) as one, starting(two_folder, has_tls=True) as two:
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
        models = command.get("/v1/models").json()["data"]
        assert [model["id"] for model in models] == [f"m{command.port}"] != [f"m{other.port}"]


def test_what_is_behind_haproxy_does_not_answer_for_others(pair: tuple[Server, Server]) -> None:
    """Whoever has a port: each gateway and proxy knows the name that its own HAProxy asks for."""
    for command in pair:
        listeners = [each for each in command.listeners() if each.process.startswith((GATEWAY, PROXY))]
        ports = {each.port for each in listeners if each.port in (*GATEWAY_PORTS, *FALLBACK_PORTS)}
        assert len(ports) == 2
        for port in ports:
            url = f"http://{LOOPBACK}:{port}/-/healthz"
            assert httpx.get(url, timeout=SECONDS).status_code == 200
            with pytest.raises(httpx.TransportError):
                httpx.get(url, headers={SERVER: "another"}, timeout=SECONDS)


def test_an_open_server_says_so(pair: tuple[Server, Server]) -> None:
    one, two = pair
    assert f"No API key: anyone who can reach port {one.port} can send requests\n" in one.said
    assert not any(line.startswith("No API key") for line in two.said)


def test_only_http_and_serves_replicas_listen_off_loopback(pair: tuple[Server, Server]) -> None:
    """HTTP as it was asked to, and one gRPC port of each replica, which Serve gives no address to;
    it wants Ray's token.
    """
    one, _ = pair
    for command in pair:
        listeners = command.listeners()
        for name in ("ray::ServeController", PROXY, REPLICA, "ray::WorkerActor"):
            assert any(each.process.startswith(name) for each in listeners), name  # nobody was passed over
        assert [each.port for each in listeners if "haproxy -db" in each.process] == [command.port]
        assert len([each for each in listeners if each.process.startswith(GATEWAY)]) >= 2  # HTTP, too
        public = [each for each in listeners if not is_loopback(each.host)]
        assert [each.port for each in public if "haproxy -db" in each.process] == [one.port] * (command is one)
        others = [each for each in public if each.port != one.port]
        replicas = sorted(each.process.rpartition(":")[2].partition(".")[0] for each in others)  # not what they do now
        assert replicas == ["EngineDeployment", "GatewayDeployment"]
        for each in others:
            assert each.process.startswith(REPLICA) and each.host == "::"
            with grpc.insecure_channel(f"{LOOPBACK}:{each.port}") as channel:
                call = channel.unary_unary("/ray.serve.ASGIService/HandleRequest")
                with pytest.raises(grpc.RpcError) as refused:
                    call(b"", timeout=60)
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("is_other_machine", [False, True], ids=["by its own address", "from another machine"])
def test_the_network_reaches_replicas_and_what_is_open(pair: tuple[Server, Server], is_other_machine: bool) -> None:
    """Another machine is there for root alone; at this machine's own address the kernel answers the
    same.
    """
    listeners = [each for command in pair for each in command.listeners()]
    ports = {each.port for each in listeners}
    if not is_other_machine:
        reached = reached_at(network_address(), ports)
    elif reason := why_not():
        pytest.skip(reason)
    else:
        with other_machine() as other:
            reached = other.reaches(ports)
    of_replicas = {each.port for each in listeners if each.process.startswith(REPLICA) and each.host == "::"}
    assert reached == of_replicas | {pair[0].port}


def test_debugging_is_for_clients_on_this_machine(pair: tuple[Server, Server]) -> None:
    for command in pair:
        assert command.get("/debug/engines").status_code == 200
        assert command.get("/debug/engines", **{"x-forwarded-for": "127.0.0.1"}).status_code == 403
    remote = f"http://{network_address()}:{pair[0].port}"
    assert httpx.get(f"{remote}/v1/models", timeout=SECONDS).status_code == 200
    for name in ("x-nothing", "x-forwarded-for", "forwarded", "x-real-ip"):
        refused = httpx.get(f"{remote}/debug/engines", headers={name: "127.0.0.1"}, timeout=SECONDS)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "key_or_loopback_needed")


def test_no_header_opens_a_full_queue(pair: tuple[Server, Server]) -> None:
    one, _ = pair
    with full(one.port) as client:
        check_that_no_header_opens(client, is_haproxy=True)
    assert one.says()


def test_a_stream_goes_on_under_a_new_certificate(pair: tuple[Server, Server]) -> None:
    _, two = pair
    assert f"Ready: {two.url}/v1 (" in two.said[-1] and two.certificate is not None
    asked: dict[str, Any] = {"model": f"m{two.port}", "prompt": "once", "temperature": 0}
    asked |= {"max_tokens": 400, "extra_body": {"ignore_eos": True}}
    with two.client() as client, client.completions.create(stream=True, **asked) as stream:
        chunks = iter(stream)
        text = next(chunks).choices[0].text
        assert name_served(AUTHORITY, two.port) == "first"
        AUTHORITY.issue(two.certificate, "second")
        wait_until(lambda: name_served(AUTHORITY, two.port) == "second", "the certificate is not renewed")
        text += "".join(choice.text for chunk in chunks for choice in chunk.choices)
        assert text == client.completions.create(**asked).choices[0].text


def test_a_bad_certificate_is_not_taken_and_the_log_says_so(pair: tuple[Server, Server]) -> None:
    _, two = pair
    assert two.certificate is not None
    (logs,) = (line.removeprefix("Logs: ").strip() for line in two.said if line.startswith("Logs: "))
    (two.certificate / "key.pem").write_text("nonsense")
    log = Path(logs) / "serve" / "certificate.log"
    wait_until(lambda: f"{two.certificate}/key.pem has no private key in PEM" in log.read_text(), "nothing is logged")
    assert two.says()


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
    haproxy = only_haproxy(one)
    os.kill(haproxy, signal.SIGKILL)
    wait_until(lambda: one.pids("haproxy -db") not in ([], [haproxy]) and is_open(one), "there is no other HAProxy")
    assert one.says() == two.says() == before


def test_haproxy_goes_with_its_manager_and_comes_with_the_next(pair: tuple[Server, Server]) -> None:
    one, _ = pair
    (manager,) = one.pids("ray::HAProxyManager")
    haproxy = only_haproxy(one)
    os.kill(manager, signal.SIGKILL)
    wait_until(lambda: one.pids("haproxy -db") not in ([], [haproxy]) and is_open(one), "there is no other HAProxy")
    assert one.says()


def test_a_signal_to_every_process_leaves_nothing(pair: tuple[Server, Server]) -> None:
    """Not to the command alone, which would have it finish what runs."""
    _, two = pair
    (logs,) = (line.removeprefix("Logs: ").strip() for line in two.said if line.startswith("Logs: "))
    folder = Path(logs).parents[2]
    assert folder.name.startswith("squadron-") and folder.exists()
    asked: dict[str, Any] = {"model": f"m{two.port}", "prompt": "once", "max_tokens": 300}
    with two.client() as client, client.completions.create(stream=True, **asked, extra_body={"ignore_eos": True}) as it:
        next(iter(it))
        for pid in processes_with(two.mark):
            with contextlib.suppress(ProcessLookupError):  # ended meanwhile
                os.kill(pid, signal.SIGTERM)
        assert two.process.wait(timeout=60) == 0
    assert two.process.stdout is not None
    assert "Stopping; running requests are finished first\n" in two.process.stdout.read()
    wait_until_gone(two.mark)
    assert not folder.exists()


def only_haproxy(command: Server) -> int:
    """Once an earlier one is gone: where a gateway has been replaced, another one takes over."""
    found: list[int] = []

    def is_one() -> bool:
        found[:] = command.pids("haproxy -db")
        return len(found) == 1

    wait_until(is_one, "there are several")
    return found[0]


def is_open(command: Server) -> bool:
    try:
        return command.get("/health").status_code == 200
    except httpx.TransportError:
        return False
