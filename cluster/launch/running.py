"""Runs the application on Serve, and shuts it down in order."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from cluster.launch.node.within import answers, do_within
from cluster.launch.proxies import Proxies
from cluster.launch.replicas import DRAIN_SECONDS, STOP_SECONDS, Replicas
from cluster.launch.serve_calls import close_if_alone, end_serve, run
from engine.errors import ClusterLost

CLOSE_SECONDS = 5.0  # for Serve's proxies, which still send what gateways have ended
SERVE_SECONDS = 5.0  # for Serve itself


@contextlib.contextmanager
def running(application: serve.Application, address: str, *, ends_serve: bool) -> Iterator[DeploymentHandle[Any]]:
    """The application's gateways, for as long as the context lasts; then requests are finished and
    engines ended before the port is closed. `address`: the port's, empty if nothing listens;
    `ends_serve`: see `serving`. Raises InvalidConfig if it does not start.
    """
    proxies = Proxies()
    steps: list[Callable[[], None]] = []
    try:
        gateways = run(application)
        replicas = Replicas.of(gateways)
        steps = [replicas.drain, replicas.stop]
        replicas.join()
        replicas.meet()
        proxies.meet()
        yield gateways
    except ClusterLost:
        steps = [replicas.drain]  # ending engines would wait for Ray; they will be killed soon
        raise
    finally:
        if ray.is_initialized():
            # On a cluster of our own the HTTP port: running requests can be finished after the
            # death of Ray's GCS.
            needed = ray.get_runtime_context().gcs_address if ends_serve or not address else address
            do_within(steps, DRAIN_SECONDS + STOP_SECONDS, needed=needed)
            if ends_serve:
                do_within([lambda: close_if_alone(proxies), end_serve], CLOSE_SECONDS + SERVE_SECONDS, needed=needed)
            elif answers(needed):
                do_within([proxies.close], CLOSE_SECONDS)
