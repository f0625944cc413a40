"""Replicas die, freeze and are replaced under streams: the streams go on, with what they would have
said.
"""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
import ray
from ray import serve

from cluster.serve_status import count_call, running_replicas
from tests.end_to_end.chaos.processes import ENGINE as ENGINE_PROCESS
from tests.end_to_end.chaos.processes import GATEWAY, PROXY, find, is_alive
from tests.end_to_end.conftest import LOOPBACK, Server

DEADLINE_SECONDS = 300.0
LONG = 1500  # tokens
BODY = {
    "model": "demo",
    "prompt": "once",
    "max_tokens": 400,
    "seed": 3,
    "n": 2,
    "logprobs": 1,
    "stream": True,
    "extra_body": {"ignore_eos": True},
    "stream_options": {"include_usage": True},
}


@pytest.fixture(scope="module")
def undisturbed(server: Server) -> Any:
    wait_until_healthy(server)
    return said_by(server, lambda: None)


def test_serve_tells_which_replicas_run_as_they_call_themselves(server: Server) -> None:
    """A gateway looks into Serve's router for it; not found there, it would have every replica
    connect each second.
    """
    engines = serve.get_deployment_handle("EngineDeployment", "squadron")
    engines.broadcast("stats").results(timeout_s=DEADLINE_SECONDS)  # from now on it is told of them
    wait_until_healthy(server)
    wait_until(lambda: running_replicas(engines) == {engine(server)["replica"]}, "it tells of others, or of none")


def test_serve_counts_the_calls_that_are_made_past_its_router(server: Server) -> None:
    """It scales deployments by them; where it counts is looked up inside of Serve."""
    engines = serve.get_deployment_handle("EngineDeployment", "squadron")
    engines.broadcast("stats").results(timeout_s=DEADLINE_SECONDS)
    metrics, replica = engines._router._asyncio_router._metrics_manager, engine(server)["replica"]

    def counted() -> dict[str, int]:
        sent = metrics.num_requests_sent_to_replicas
        return {key.to_full_id_str(): count for key, count in sent.items() if count}

    for change, expected in ((1, {replica: 1}), (1, {replica: 2}), (-1, {replica: 1}), (-1, {})):
        count_call(engines, replica, change)
        assert counted() == expected
    count_call(engines, "", 1)  # outside of Serve there is nothing to count
    assert counted() == {}


@pytest.mark.long  # every kind of request outlives it: test_every_kind.py
def test_a_stream_outlives_its_engine_replica(server: Server, undisturbed: Any) -> None:
    assert said_by(server, lambda: os.kill(engine(server)["pid"], signal.SIGKILL)) == undisturbed
    wait_until_healthy(server)


@pytest.mark.long
def test_sigterm_ends_an_engine_replica_at_once_where_no_second_one_has_room(server: Server) -> None:
    """Not once its streams have ended, for which new requests would wait: these are so long that
    they end later, on a fast machine too.
    """
    undisturbed = said_by(server, lambda: None, max_tokens=LONG)
    pid = engine(server)["pid"]
    ends = []

    def terminate() -> None:
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not is_alive(pid), "the replica has not ended")
        ends.append("replica")

    with taken(ray.available_resources()["CPU"] - 0.5):
        assert said_by(server, terminate, at_end=lambda: ends.append("stream"), max_tokens=LONG) == undisturbed
        assert ends == ["replica", "stream"]
        wait_until_healthy(server)


def test_an_engine_replica_that_got_a_sigterm_serves_until_the_next_one_is_ready(
    server: Server, undisturbed: Any
) -> None:
    """And then hands over its streams."""
    before = engine(server)
    answers = []

    def num_answered() -> int:
        stats = of_replica(server, before)["stats"]  # of its last report, a fifth of a second old at most
        return int(stats["num_requests_finished"] - before["stats"]["num_requests_finished"])

    def terminate() -> None:
        os.kill(before["pid"], signal.SIGTERM)
        with next_engine_stopped(before["pid"]):
            wait_until(lambda: of_replica(server, before)["is_leaving"], "it does not say that it leaves")
            answers.extend(short_answers(server))
            wait_until(lambda: num_answered() >= len(answers), "another replica has answered")
        wait_until(lambda: not is_alive(before["pid"]), "the replica has not ended")

    terminating = threading.Thread(target=terminate)
    assert said_by(server, terminating.start) == undisturbed
    while terminating.is_alive():  # so that the end falls into one
        assert said_by(server, lambda: None) == undisturbed
    assert answers == short_answers(server)
    wait_until_healthy(server)


@pytest.mark.long
def test_a_second_sigterm_ends_an_engine_replica_at_once(server: Server, undisturbed: Any) -> None:
    """Which served until the next one was ready: its streams outlive that too."""
    before = engine(server)

    def terminate() -> None:
        os.kill(before["pid"], signal.SIGTERM)
        with next_engine_stopped(before["pid"]):
            wait_until(lambda: of_replica(server, before)["is_leaving"], "it does not say that it leaves")
            os.kill(before["pid"], signal.SIGTERM)
            wait_until(lambda: not is_alive(before["pid"]), "it waits for the next one, which is stopped")

    assert said_by(server, terminate) == undisturbed
    assert said_by(server, lambda: None) == undisturbed
    wait_until_healthy(server)


@pytest.mark.long
def test_a_frozen_engine_replica_is_replaced(server: Server, undisturbed: Any) -> None:
    pid = engine(server)["pid"]
    assert said_by(server, lambda: os.kill(pid, signal.SIGSTOP)) == undisturbed
    assert not os.path.exists(f"/proc/{pid}")
    assert engine(server)["pid"] != pid


def test_a_token_comes_through_every_rank(server: Server) -> None:
    assert httpx.get(f"{server.url}/health/deep", timeout=DEADLINE_SECONDS).json() == {"status": "ok"}


def test_prompts_of_30_mib_are_refused_and_harm_nobody(server: Server, undisturbed: Any) -> None:
    pid, text = engine(server)["pid"], "the quick brown fox " * ((30 << 20) // 20)
    long_ones = {"completions": {"prompt": text}, "chat/completions": {"messages": [{"role": "user", "content": text}]}}
    answers: list[httpx.Response] = []

    def ask() -> None:
        for path, body in long_ones.items():
            url = f"{server.url}/v1/{path}"
            answers.append(httpx.post(url, json={"model": "demo"} | body, timeout=DEADLINE_SECONDS))

    assert said_by(server, ask) == undisturbed
    errors = [answer.json()["error"] for answer in answers]
    assert [answer.status_code for answer in answers] == [400, 400]
    assert [(error["code"], error["param"]) for error in errors] == [
        ("context_length_exceeded", "prompt"),
        ("context_length_exceeded", "messages"),
    ]
    assert engine(server)["pid"] == pid


def test_a_lost_gateway_is_no_clean_end(server: Server) -> None:
    """Whatever the proxy makes of it: the chunked body is not ended, and the `openai` client
    raises.
    """
    chunks = server.client(timeout=DEADLINE_SECONDS).completions.create(**BODY)
    with socket.create_connection((LOOPBACK, server.port), timeout=DEADLINE_SECONDS) as connection:
        request = httpx.Request("POST", f"{server.url}/v1/completions", json=_plain(BODY))
        head = [f"{name}: {value}" for name, value in request.headers.items()]
        connection.sendall("\r\n".join(["POST /v1/completions HTTP/1.1", *head, "\r\n"]).encode() + request.content)
        received = connection.recv(1 << 16)
        next(chunks)
        ray.kill(ray.get_actor(actor_of("GatewayDeployment"), namespace="serve"))
        try:
            while data := connection.recv(1 << 16):
                received += data
        except ConnectionResetError:
            pass
        with pytest.raises((openai.APIError, httpx.TransportError)):
            assert not any(choice.finish_reason for chunk in chunks for choice in chunk.choices)
    assert received.startswith(b"HTTP/1.1 200 ")
    assert not received.endswith(b"0\r\n\r\n") and b"[DONE]" not in received
    wait_until_healthy(server)
    assert said_by(server, lambda: None)


@pytest.mark.long  # else: test_stream_resume.py, where an update ends it
def test_a_gateway_finishes_its_streams_after_sigterm(server: Server) -> None:
    """And another takes its place."""
    wait_until_healthy(server)
    undisturbed = said_by(server, lambda: None)
    (pid,) = find(GATEWAY)
    assert said_by(server, lambda: os.kill(pid, signal.SIGTERM)) == undisturbed
    wait_until(lambda: not is_alive(pid), "the gateway has not ended")
    wait_until_healthy(server)
    assert find(GATEWAY) not in ([], [pid])
    assert said_by(server, lambda: None) == undisturbed


def test_a_request_outlives_its_gateway(server: Server) -> None:
    """Of whose answer nothing has been sent: another gateway is asked."""
    body = _plain(BODY) | {"stream": False, "stream_options": None}

    def answer() -> Any:
        response = httpx.post(f"{server.url}/v1/completions", json=body, timeout=DEADLINE_SECONDS)
        assert response.status_code == 200, response.text
        return [(choice["text"], choice["logprobs"]) for choice in response.json()["choices"]]

    undisturbed = answer()
    with ThreadPoolExecutor(1) as threads:
        answering = threads.submit(answer)
        wait_until(lambda: engine(server)["stats"]["num_requests_running"] > 0, "the request does not run")
        ray.kill(ray.get_actor(actor_of("GatewayDeployment"), namespace="serve"))
        assert not answering.done()
        assert answering.result(DEADLINE_SECONDS) == undisturbed


def test_a_lost_proxy_is_replaced(server: Server, undisturbed: Any) -> None:
    lost = find(PROXY)  # two for a moment, if a gateway has just been replaced: HAProxy begins anew
    assert lost
    for pid in lost:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: bool(set(find(PROXY)) - set(lost)), "it is not replaced")
    wait_until_healthy(server)
    assert said_by(server, lambda: None) == undisturbed


def said_by(
    server: Server, disturb: Callable[[], object], at_end: Callable[[], object] = lambda: None, max_tokens: int = 400
) -> Any:
    """All that a client hears who gave `disturb` a cause once its stream had begun; in any
    pieces.
    """
    choices: dict[int, list[Any]] = {0: ["", [], None], 1: ["", [], None]}
    usage = None
    stream = server.client(timeout=DEADLINE_SECONDS).completions.create(**BODY | {"max_tokens": max_tokens})
    for number, chunk in enumerate(stream):
        if number == 20:
            disturbing = threading.Thread(target=disturb)
            disturbing.start()
        usage = chunk.usage or usage
        for choice in chunk.choices:
            whole = choices[choice.index]
            whole[0] += choice.text
            whole[1] += (
                zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, strict=True) if choice.logprobs else []
            )
            whole[2] = choice.finish_reason or whole[2]
    at_end()
    disturbing.join()
    assert usage is not None and all(whole[2] for whole in choices.values())
    return choices, usage.prompt_tokens, usage.completion_tokens


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """As they go over the wire."""
    rest = {name: value for name, value in options.items() if name != "extra_body"}
    return rest | options["extra_body"]


def engine(server: Server) -> dict[str, Any]:
    """The only engine's last report."""
    (report,) = httpx.get(f"{server.url}/debug/engines", timeout=DEADLINE_SECONDS).json()["engines"]
    return report


def of_replica(server: Server, before: dict[str, Any]) -> dict[str, Any]:
    """The same replica's last report."""
    reports = httpx.get(f"{server.url}/debug/engines", timeout=DEADLINE_SECONDS).json()["engines"]
    (report,) = [report for report in reports if report["replica"] == before["replica"]]
    return report


def short_answers(server: Server) -> list[str]:
    client = server.client(timeout=DEADLINE_SECONDS)
    return [
        client.completions.create(model="demo", prompt=prompt, max_tokens=5, temperature=0).choices[0].text
        for prompt in ("one", "two", "three")
    ]


@contextlib.contextmanager
def next_engine_stopped(pid: int) -> Iterator[None]:
    """The process of the engine replica after `pid` is stopped as soon as it is there, and goes on
    at the end.
    """
    wait_until(lambda: set(find(ENGINE_PROCESS)) - {pid} != set(), "no other engine starts")
    (other,) = set(find(ENGINE_PROCESS)) - {pid}
    os.kill(other, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(other, signal.SIGCONT)


@contextlib.contextmanager
def taken(num_cpus: float) -> Iterator[None]:
    """So many of Ray's CPUs are somebody else's."""
    group = ray.util.placement_group([{"CPU": num_cpus}])
    assert group.wait(DEADLINE_SECONDS)
    try:
        yield
    finally:
        ray.util.remove_placement_group(group)


def actor_of(deployment: str) -> str:
    (name,) = [
        actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True) if f"#{deployment}#" in actor["name"]
    ]
    return name


def wait_until_healthy(server: Server) -> None:
    wait_until(lambda: is_healthy(server), "it is not healthy")


def is_healthy(server: Server) -> bool:
    try:
        return httpx.get(f"{server.url}/health", timeout=DEADLINE_SECONDS).status_code == 200
    except httpx.TransportError:
        return False


def wait_until(holds: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"after {DEADLINE_SECONDS} s {problem}"
        time.sleep(0.02)
