"""Lines of a page of metrics, and of answers that are not what was asked for."""

import pytest

from cluster.cli import main
from cluster.commands.operating.server_status import _message, of_metrics

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


def test_a_page_without_engines() -> None:
    assert list(of_metrics("")) == [
        "engines   0 of 0 can answer; cache in use: -",
        "requests  0 running, 0 waiting, 0 swapped",
    ]


def test_errors_in_one_line() -> None:
    assert _message('{"error": {"message": "no engine is ready"}}') == "no engine is ready"
    assert _message("<html>\nmuch") == "<html>"
    assert _message("") == "no answer"


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--base-url", "http://127.0.0.1:1"]) == 2
    assert capsys.readouterr().err.startswith("squadron status: http://127.0.0.1:1 does not answer: ")
