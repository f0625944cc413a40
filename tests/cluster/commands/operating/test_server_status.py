"""Lines of a page of metrics, and of answers that are not what was asked for."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cluster.cli import main
from cluster.commands.operating.server_status import SECONDS, Told, _message, ask_server, of_engines, of_metrics
from cluster.gateway.engines.questions import PROBE_SECONDS
from engine.errors import InvalidConfig
from tests.cluster.api.scripted import running

PAGE = """# HELP vllm:num_requests_running Requests that an engine is computing
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="demo"} 3
vllm:num_requests_running{engine="1",model_name="demo"} 2
vllm:num_requests_waiting{engine="0",model_name="demo"} 7
vllm:kv_cache_usage_perc{engine="0",model_name="demo"} 0.251
vllm:kv_cache_usage_perc{engine="1",model_name="demo"} 0
squadron:engine_up{engine="0"} 1
squadron:engine_up{engine="1"} 0
"""


def test_a_page_of_metrics() -> None:
    assert list(of_metrics(PAGE)) == [
        "engines   1 of 2 can answer; cache in use: 25%, 0%",
        "requests  5 running, 7 waiting, 0 swapped",
    ]


def test_engines_that_compute_prompts_are_told_apart() -> None:
    page = PAGE + 'squadron:prefill_engines{model_name="demo"} 2.0\nsquadron:prefill_engines{model_name="other"} 1.0\n'
    assert list(of_metrics(page)) == [
        "engines   1 of 2 can answer; cache in use: 25%, 0%",
        "prefill   3 more connected, for prompts alone",
        "requests  5 running, 7 waiting, 0 swapped",
    ]


def test_a_page_without_engines() -> None:
    assert list(of_metrics("")) == [
        "engines   0 of 0 can answer; cache in use: -",
        "requests  0 running, 0 waiting, 0 swapped",
    ]


ENGINES = """{"engines": [
{"replica": "one", "problem": null, "computes_prompts": false},
{"replica": "two", "problem": "workers are restarting", "computes_prompts": false},
{"replica": "three", "problem": "no memory", "computes_prompts": true}
], "gateway": {}}"""


def test_each_replica_that_cannot_answer_is_named() -> None:
    assert list(of_engines(ENGINES)) == [
        "problem   engine two: workers are restarting",
        "problem   prefill three: no memory",
    ]
    assert list(of_engines('{"engines": []}')) == []


def test_errors_in_one_line() -> None:
    assert _message('{"error": {"message": "no engine is ready"}}') == "no engine is ready"
    assert _message("<html>\nmuch") == "<html>"
    assert _message("") == "no answer"


def test_a_server_is_given_the_time_that_its_engines_have() -> None:
    """One that has much to compute answers after that, and is not one that does not answer."""
    assert SECONDS > PROBE_SECONDS


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--base-url", "http://127.0.0.1:1"]) == 2
    assert capsys.readouterr().err.startswith("squadron status: http://127.0.0.1:1 does not answer: ")


def test_the_exit_status_says_whether_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    with running() as server:
        assert main(["status", "--base-url", server.url]) == 0
        assert "health    ok\n" in capsys.readouterr().out
        server.service.problems = ["no engine replica is there"]
        with pytest.raises(SystemExit) as ended:
            main(["status", "--base-url", server.url])
        assert ended.value.code == 1
        assert "health    no engine replica is there\n" in capsys.readouterr().out


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The URL of a server that gives every client that answer."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def http_answer(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def test_a_server_that_wants_a_key_says_so() -> None:
    with answering(http_answer("401 Unauthorized", b'{"error": {"message": "An API key is needed"}}')) as url:
        told = ask_server(url, None)
    lines = [
        f"server    {url}, An API key is needed",
        *(f"{name:<10}An API key is needed" for name in ("health", "models", "metrics")),
    ]
    assert told == Told(lines, is_well=False)


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"[]", b'{"data": 1}', b""])
def test_a_server_of_another_kind(body: bytes) -> None:
    with answering(http_answer("200 OK", body)) as url:
        told = ask_server(url, None)
    assert told.lines[0] == f"server    {url}, which is not Squadron"
    assert len(told.lines) == 6 and not told.is_well


def test_a_server_that_speaks_no_http() -> None:
    with (
        answering(b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\n") as url,
        pytest.raises(InvalidConfig, match="does not answer"),
    ):
        ask_server(url, None)
