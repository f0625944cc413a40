"""The end of a connection that other threads still use, each time in a process of its own."""

import asyncio
import logging
import subprocess
import sys

import pytest
from ray.exceptions import RaySystemError

from cluster.launch.node.ending import ENDING, TELLING, _is_news

USE_AND_END = """
import sys
import threading

import ray

from cluster.launch.node.own_cluster import own_cluster


@ray.remote(num_cpus=0)
class Answering:
    def answer(self):
        return 1


def use(actor, begun):
    while True:
        try:
            answer = actor.answer.remote()
            if sys.argv[1] == "get":
                ray.get(answer)
            elif sys.argv[1] == "await":
                answer._on_completed(lambda _: None)
        except Exception:
            if ended.is_set():
                return
        begun.set()


ended = threading.Event()
with own_cluster(1, 1, None):
    actor = Answering.remote()
    threads = []
    for _ in range(2):
        begun = threading.Event()
        threads.append(threading.Thread(target=use, args=(actor, begun)))
        threads[-1].start()
        begun.wait()
ended.set()
for thread in threads:
    thread.join()
print("the process goes on")
"""


@pytest.mark.parametrize("use", ["get", pytest.param("await", marks=pytest.mark.long)])
def test_a_process_goes_on_whoever_still_asks_ray(use: str) -> None:
    """By itself, Ray has a process exit that asks for anything after its shutdown has begun."""
    command = [sys.executable, "-c", USE_AND_END, use]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.stdout.splitlines()[-1:] == ["the process goes on"], result.stderr
    assert result.returncode == 0


ERRORS = [(f"{ENDING} (get_objects)", False), ("the node is lost", True)]


@pytest.mark.parametrize(("error", "is_told"), ERRORS)
def test_an_answer_that_comes_while_the_connection_ends_is_no_news(
    caplog: pytest.LogCaptureFixture, error: str, is_told: bool
) -> None:
    """Ray's library would tell of it with a traceback."""
    logger = logging.getLogger("ray._raylet")
    logger.addFilter(_is_news)
    try:
        raise RaySystemError(error)
    except RaySystemError:
        logger.exception("failed to run async callback (user func)")
    assert (error in caplog.text) == is_told


@pytest.mark.parametrize(("error", "is_told"), ERRORS)
async def test_a_callback_that_asks_while_the_connection_ends_is_no_news(
    caplog: pytest.LogCaptureFixture, error: str, is_told: bool
) -> None:
    """As Serve's do."""

    def ask() -> None:
        raise RaySystemError(error)

    assert "asyncio" in TELLING
    logging.getLogger("asyncio").addFilter(_is_news)
    asyncio.get_running_loop().call_soon(ask)
    await asyncio.sleep(0)
    assert (error in caplog.text) == is_told
