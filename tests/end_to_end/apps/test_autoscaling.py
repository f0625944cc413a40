"""Engine replicas come and go with the load, and no answer changes."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from cluster.launch.app import build_app
from cluster.launch.ray_cluster import ray_cluster
from cluster.launch.serving import serving
from cluster.sockets import LOOPBACK
from tests.end_to_end.chaos.app import DEMO
from tests.end_to_end.conftest import free_port
from tests.end_to_end.test_replica_lost import wait_until

SECONDS = 300.0
SEATS = 4  # of an engine
ENGINE = {"model": str(DEMO), "device": "cpu", "num_threads": 1, "kv_cache_memory_bytes": 32 << 20}
FAST = {"upscale_delay": 0.5, "downscale_delay": 0.5}
LONG = 1800  # tokens
QUESTIONS = [f"Write the numbers from {first} to {first + 40}." for first in range(3 * SEATS)]


@contextmanager
def running(autoscaling: dict[str, Any]) -> Iterator[str]:
    port = free_port()
    args = {
        "engine": ENGINE | {"max_num_seqs": SEATS, "max_num_queued_reqs": 64},
        "autoscaling": autoscaling | FAST,
        "max_queue_seconds": 0,
    }
    with (
        ray_cluster(num_workers=8),
        serving(build_app(args), host=LOOPBACK, port=port, ends_serve=True),
    ):
        yield f"http://{LOOPBACK}:{port}"


@pytest.fixture(autouse=True)
def reports_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("REPLICA", "HANDLE"):
        monkeypatch.setenv(f"RAY_SERVE_{kind}_AUTOSCALING_METRIC_PUSH_INTERVAL_S", "0.5")


def ask(url: str, question: str, num_tokens: int = 300) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=SECONDS) as client:
        stream = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=num_tokens,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        chunks = list(stream)
    assert chunks[-1].choices[0].finish_reason == "length"
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def engines(url: str) -> list[dict[str, Any]]:
    """Their last reports."""
    told: list[dict[str, Any]] = httpx.get(f"{url}/debug/engines", timeout=SECONDS).json()["engines"]
    return told


def num_engines(url: str) -> int:
    return len(engines(url))


def num_moves(url: str) -> float:
    """Of requests that have ended, from one engine to another."""
    lines = httpx.get(f"{url}/metrics", timeout=SECONDS).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("squadron:request_moves_total{"))


@contextmanager
def asking(url: str, expected: dict[str, str], num_tokens: int = 300) -> Iterator[list[str]]:
    """Each question again and again, by a client of its own; those that were answered, as they
    were expected to be.
    """
    enough = threading.Event()
    answered: list[str] = []

    def keep_asking(question: str) -> None:
        while not enough.is_set():
            assert ask(url, question, num_tokens) == expected[question]
            answered.append(question)

    with ThreadPoolExecutor(len(expected)) as pool:
        clients = [pool.submit(keep_asking, question) for question in expected]
        try:
            yield answered
        finally:
            enough.set()
        for each in clients:
            each.result()


@pytest.mark.long
def test_one_becomes_three_and_one_again() -> None:
    with running({"min_engines": 1, "max_engines": 3}) as url:
        expected = {question: ask(url, question) for question in QUESTIONS}
        long = {question: ask(url, question, LONG) for question in QUESTIONS[:2]}
        with asking(url, expected) as answered:
            wait_until(lambda: num_engines(url) == 3, "there are no three engines")
        assert set(answered) == set(QUESTIONS)
        before = num_moves(url)
        with asking(url, long, LONG):  # two streams, which are on two engines, and need one
            wait_until(lambda: num_engines(url) == 1, "there is not one engine again")
        assert num_moves(url) > before, "no stream was on an engine that has ended"


@pytest.mark.long
def test_one_engine_stands_by_beside_those_that_the_load_needs() -> None:
    with running({"min_engines": 0, "max_engines": 3, "standby_engines": 1}) as url:
        expected = {QUESTIONS[0]: ask(url, QUESTIONS[0])}
        with asking(url, expected):  # one stream, for which one engine is enough
            wait_until(lambda: num_engines(url) == 2, "none stands by")
        wait_until(lambda: num_engines(url) == 1, "two engines stay, and none has anything to do")
        (standing_by,) = engines(url)
        assert ask(url, QUESTIONS[0]) == expected[QUESTIONS[0]]
        assert standing_by["replica"] in {each["replica"] for each in engines(url)}, (
            "it has not started for the request"
        )


@pytest.mark.long
def test_none_until_somebody_asks() -> None:
    with running({"min_engines": 0, "max_engines": 1}) as url:
        expected = ask(url, QUESTIONS[0])
        wait_until(lambda: num_engines(url) == 0, "an engine stays that has nothing to do")
        assert httpx.get(f"{url}/health").status_code == 200  # or a load balancer would send no more requests
        assert httpx.get(f"{url}/health/deep", timeout=SECONDS).status_code == 200
        assert ask(url, QUESTIONS[0]) == expected
