"""The engine replica dies under a stream: its client is told, and the next request is answered."""

import time

import httpx
import openai
import pytest
import ray

from tests.end_to_end.conftest import Server

DEADLINE_SECONDS = 60.0


def test_a_stream_ends_in_an_error_and_the_service_comes_back(server: Server) -> None:
    stream = server.client().completions.create(
        model="demo", prompt="once", max_tokens=1900, stream=True, extra_body={"ignore_eos": True}
    )
    received = iter(stream)
    assert next(received).choices
    kill_engine_replica()
    with pytest.raises(openai.APIError) as raised:
        for chunk in received:
            assert not any(choice.finish_reason for choice in chunk.choices)
    assert raised.value.code == "engine_restarting"
    wait_until_healthy(server)
    answer = server.client().completions.create(model="demo", prompt="once", max_tokens=3)
    assert answer.choices[0].finish_reason in ("length", "stop")


def kill_engine_replica() -> None:
    (name,) = [
        actor["name"]
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if "#EngineDeployment#" in actor["name"]
    ]
    ray.kill(ray.get_actor(name, namespace="serve"))


def wait_until_healthy(server: Server) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while httpx.get(f"{server.url}/health", timeout=DEADLINE_SECONDS).status_code != 200:
        assert time.monotonic() < deadline, f"not healthy after {DEADLINE_SECONDS} s"
