"""Serve's own parts die: its controller, and a gateway's view of what Serve has."""

import os
import signal
import threading
from typing import Any

import httpx
import pytest
import ray
from ray import serve
from ray.serve._private.router import SingletonThreadRouter

from cluster.launch.app import APP_NAME, build_app
from tests.end_to_end.chaos.processes import CONTROLLER, GATEWAY, find
from tests.end_to_end.conftest import Server
from tests.end_to_end.test_replica_lost import (
    DEADLINE_SECONDS,
    actor_of,
    engine,
    said_by,
    wait_until,
    wait_until_healthy,
)


def test_streams_outlive_serves_controller(server: Server) -> None:
    wait_until_healthy(server)
    undisturbed = said_by(server, lambda: None)
    assert said_by(server, kill_controller) == undisturbed


@pytest.mark.long
def test_an_engine_of_the_next_controller_is_known_to_the_gateway_that_was_there_before(server: Server) -> None:
    wait_until_healthy(server)
    undisturbed = said_by(server, lambda: None)
    kill_controller()
    assert said_by(server, lambda: os.kill(engine(server)["pid"], signal.SIGKILL)) == undisturbed
    wait_until_healthy(server)


def kill_controller() -> None:
    (pid,) = find(CONTROLLER)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: find(CONTROLLER) not in ([], [pid]), "there is no other controller")


@pytest.mark.long
def test_a_gateway_that_has_lost_sight_of_serve_is_replaced(server: Server) -> None:
    wait_until_healthy(server)
    undisturbed = said_by(server, lambda: None)
    name = actor_of("GatewayDeployment")
    ray.get(ray.get_actor(name, namespace="serve").__ray_call__.remote(_stop_listening_to_serve))
    os.kill(engine(server)["pid"], signal.SIGKILL)
    wait_until(lambda: actor_of_or_none("GatewayDeployment") not in (name, None), "the gateway is not replaced")
    wait_until_healthy(server)
    assert said_by(server, lambda: None) == undisturbed


@pytest.mark.long  # it replaces both engines and gateways, twice
def test_a_request_that_no_gateway_takes_ends(server: Server) -> None:
    """After the patience of the gateway that was there before; a frozen controller starts no
    other.
    """
    serve.run(build_app(server.args | {"patience": 2.0}), name=APP_NAME, route_prefix="/")
    wait_until_healthy(server)
    (controller,), (gateway,) = find(CONTROLLER), find(GATEWAY)
    os.kill(controller, signal.SIGSTOP)
    try:
        os.kill(gateway, signal.SIGKILL)
        response = httpx.post(f"{server.url}/v1/completions", json={"prompt": "once"}, timeout=DEADLINE_SECONDS)
    finally:
        os.kill(controller, signal.SIGCONT)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "not_ready")
    assert response.json()["error"]["message"].startswith("No gateway took the request within 2 s")
    serve.run(build_app(server.args), name=APP_NAME, route_prefix="/")
    wait_until_healthy(server)


def actor_of_or_none(deployment: str) -> str | None:
    """While it is replaced there may be none."""
    try:
        return actor_of(deployment)
    except ValueError:
        return None


def _stop_listening_to_serve(_: Any) -> None:
    """Run in the gateway's process: requests and news go through this loop."""
    loop = SingletonThreadRouter._asyncio_loop
    assert loop is not None
    stopped = threading.Event()
    loop.call_soon_threadsafe(lambda: (loop.stop(), stopped.set()))
    stopped.wait()
