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


def ask(url: str, question: str) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=SECONDS) as client:
        stream = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=300,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        chunks = list(stream)
    assert chunks[-1].choices[0].finish_reason == "length"
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def num_engines(url: str) -> int:
    return len(httpx.get(f"{url}/debug/engines", timeout=SECONDS).json()["engines"])


@pytest.mark.long
def test_one_becomes_three_and_one_again() -> None:
    with running({"min_engines": 1, "max_engines": 3}) as url:
        expected = {question: ask(url, question) for question in QUESTIONS}
        enough = threading.Event()

        def keep_asking(question: str) -> int:
            num_asked = 0
            while not enough.is_set():
                assert ask(url, question) == expected[question]
                num_asked += 1
            return num_asked

        with ThreadPoolExecutor(len(QUESTIONS)) as pool:
            asking = [pool.submit(keep_asking, question) for question in QUESTIONS]
            try:
                wait_until(lambda: num_engines(url) == 3, "there are no three engines")
            finally:
                enough.set()
        assert all(each.result() for each in asking)
        with ThreadPoolExecutor(1) as pool:
            last = pool.submit(ask, url, QUESTIONS[0])
            wait_until(lambda: num_engines(url) == 1, "there is not one engine again")
        assert last.result() == expected[QUESTIONS[0]]


@pytest.mark.long
def test_none_until_somebody_asks() -> None:
    with running({"min_engines": 0, "max_engines": 1}) as url:
        expected = ask(url, QUESTIONS[0])
        wait_until(lambda: num_engines(url) == 0, "an engine stays that has nothing to do")
        assert httpx.get(f"{url}/health").status_code == 200  # or a load balancer would send no more requests
        assert ask(url, QUESTIONS[0]) == expected
