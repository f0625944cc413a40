"""A stream outlives the gateway that it came from: its client comes back with the last event it
had, and gets the rest.

And what one gateway knows the other one tells.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from ray import serve

from cluster.launch.app import APP_NAME, build_app
from tests.documents.snippets import snippet
from tests.end_to_end.chaos.processes import GATEWAY, find
from tests.end_to_end.conftest import LOOPBACK, Server, end_server
from tests.end_to_end.test_replica_lost import DEADLINE_SECONDS, said_by, wait_until_healthy

BODY = {"model": "demo", "prompt": "once", "max_tokens": 300, "seed": 3, "ignore_eos": True, "stream": True}
WITH_IDS = {
    "return_token_ids": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "truncate_prompt_tokens": 3,
}
RESUMABLE = {"stream_resume": True, "api_keys": ["key"], "num_gateways": 2}
NUM_BEFORE = 40  # events, until the gateway is killed


@pytest.fixture(scope="module")
def told(server: Server, request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """What a client hears that nothing disturbs, and one while everything is replaced: by what can
    resume streams. Other files get a new server.
    """
    wait_until_healthy(server)
    undisturbed = said_by(server, lambda: None)
    try:
        yield undisturbed, said_by(server, lambda: deploy(server, RESUMABLE))
    finally:
        end_server(request.config)


@pytest.fixture(scope="module")
def resumable(server: Server, told: tuple[Any, Any]) -> Server:
    return server


def deploy(server: Server, changes: dict[str, Any]) -> None:
    serve.run(build_app(server.args | changes), name=APP_NAME, route_prefix="/")
    wait_until_healthy(server)


def test_streams_outlive_an_update_of_everything(told: tuple[Any, Any]) -> None:
    """New engines, new gateways; a stream stays on the gateway that it is on."""
    undisturbed, meanwhile = told
    assert meanwhile == undisturbed


def test_each_gateway_tells_why_a_request_took_so_long(resumable: Server) -> None:
    first, *_ = events(resumable, None)
    (request_id,) = re.findall(rb"cmpl-[0-9a-f]{32}", first.partition(b"\n")[2])
    headers = {"authorization": "Bearer key"}
    for _ in range(12):  # one of them asks the other
        answer = httpx.get(
            f"{resumable.url}/debug/why/{request_id.decode()}", headers=headers, timeout=DEADLINE_SECONDS
        )
        assert answer.status_code == 200, answer.text
        assert sum(answer.json()["seconds"].values()) > 0


def test_each_gateway_tells_the_figures_of_all_and_of_those_that_died(resumable: Server) -> None:
    for _ in range(6):  # some on either gateway
        assert list(events(resumable, None))
    ended, num_tokens = figures(resumable)
    assert ended["vllm:request_success_total"] == ended["vllm:e2e_request_latency_seconds_count"] >= 6
    for kills in (False, True):
        if kills:
            os.kill(find(GATEWAY)[0], signal.SIGKILL)
            wait_until_healthy(resumable)
        for _ in range(12):
            before = num_tokens  # of which engines tell five times a second
            told, num_tokens = figures(resumable)
            assert told == ended and num_tokens >= before


def figures(server: Server) -> tuple[dict[str, float], float]:
    """What gateways count of requests that have ended, and the tokens that engines count."""
    answer = httpx.get(f"{server.url}/metrics", headers={"authorization": "Bearer key"}, timeout=DEADLINE_SECONDS)
    assert answer.status_code == 200, answer.text
    samples = [sample for family in text_string_to_metric_families(answer.text) for sample in family.samples]
    names = ("vllm:request_success_total", "vllm:e2e_request_latency_seconds_count", "vllm:generation_tokens_total")
    sums = {name: sum(sample.value for sample in samples if sample.name == name) for name in names}
    return sums, sums.pop("vllm:generation_tokens_total")


@pytest.mark.parametrize(
    "more", [pytest.param({}, marks=pytest.mark.long, id="text"), pytest.param(WITH_IDS, id="ids")]
)
def test_a_stream_outlives_both_gateways(resumable: Server, more: dict[str, Any]) -> None:
    undisturbed = b"".join(events(resumable, None, more))
    had: list[bytes] = []
    with contextlib.suppress(http.client.HTTPException, OSError):
        for event in events(resumable, None, more):
            had.append(event)
            if len(had) == NUM_BEFORE:
                for pid in find(GATEWAY):
                    os.kill(pid, signal.SIGKILL)
    assert len(had) >= NUM_BEFORE and b"[DONE]" not in b"".join(had)
    killed = time.monotonic()
    wait_until_healthy(resumable)
    rest = list(events(resumable, had[-1], more))
    print(f"event {len(had)} was the last one; whole {time.monotonic() - killed:.1f} s after the gateways were killed")
    assert plain(b"".join([*had, *rest])) == plain(undisturbed)
    assert b"".join(events(resumable, had[0], more)) == b"".join([*had[1:], *rest])


def events(server: Server, last: bytes | None, more: Mapping[str, Any] = MappingProxyType({})) -> Iterator[bytes]:
    """The stream's events after `last`, or all of them, as they come over a connection of their
    own.
    """
    headers = {"content-type": "application/json", "authorization": "Bearer key"}
    if last is not None:
        headers["Last-Event-ID"] = last.partition(b"\n")[0].removeprefix(b"id: ").decode()
    connection = http.client.HTTPConnection(LOOPBACK, server.port, timeout=DEADLINE_SECONDS)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", json.dumps(BODY | dict(more)), headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        event = b""
        while line := response.readline():
            event += line
            if line == b"\n":
                yield event
                event = b""
        assert event == b""


def plain(stream: bytes) -> bytes:
    """Without the request's id and time."""
    return re.sub(rb'cmpl-[0-9a-f]{32}|"created":[0-9]+', b"", stream)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_documents_command_resumes_a_stream(resumable: Server) -> None:
    shown = snippet("docs/api.md", "Last-Event-ID").text
    shown = shown.replace("http://127.0.0.1:8000", resumable.url) + " -sS -H 'authorization: Bearer key'"
    (last_id,) = re.findall(r" *-H 'Last-Event-ID: (\S+)'", shown)
    whole = printed(shown.replace(f"-H 'Last-Event-ID: {last_id}'", ""))
    ids = re.findall(r"^id: (\S+)$", whole, re.MULTILINE)
    number = last_id.rpartition(":")[2]
    (there,) = (each for each in ids if each.endswith(f":{number}"))
    rest = printed(shown.replace(last_id, there))
    assert rest.startswith(f"id: {ids[ids.index(there) + 1]}\n") and whole.endswith(rest)


def printed(command: str) -> str:
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=60).stdout
