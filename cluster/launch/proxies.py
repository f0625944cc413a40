"""Finds Serve's proxies or HAProxy's managers, and closes their ports in order before they are
killed.
"""

import contextlib
import time
from typing import Any

import ray
from ray import serve
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayActorError
from ray.serve._private.constants import SERVE_NAMESPACE, SERVE_PROXY_NAME
from ray.serve._private.utils import format_actor_name

from cluster.api.edge.server import are_servers_closed, close_servers
from cluster.ingress.closing import close_haproxy, is_haproxy_closed, is_haproxy_manager

CALL_SECONDS = 2.0
MEET_SECONDS = 20.0  # at the start, which keeps a machine busy
POLL_SECONDS = 0.05


class Proxies:
    """Holds Ray handles, which reach the proxies even when Ray's GCS has died."""

    def __init__(self) -> None:
        self._actors: list[ActorHandle[Any]] = []

    def meet(self) -> None:
        """Find them, while Ray's GCS can still be asked; one that is busy may answer later."""
        self._actors = []
        for node in serve.status().proxies:
            with contextlib.suppress(ValueError):  # the proxy has just died
                name = format_actor_name(SERVE_PROXY_NAME, node)
                self._actors.append(ray.get_actor(name, namespace=SERVE_NAMESPACE))
        with contextlib.suppress(GetTimeoutError):
            self._call(_is_closed, MEET_SECONDS)  # the call connects this process to theirs

    def close(self) -> None:
        """Have them answer requests in transit with 503, and close the port and every connection;
        returns when they have.
        """
        if len(self._call(_close)) < len(self._actors):  # another one has taken its place
            self.meet()
            self._call(_close)
        while not all(self._call(_is_closed)):
            time.sleep(POLL_SECONDS)

    def _call(self, function: Any, seconds: float = CALL_SECONDS) -> list[Any]:
        """The function's results in each proxy's process, without those that have died."""
        calls = [actor.__ray_call__.remote(function) for actor in self._actors]
        answers = []
        for call in calls:
            with contextlib.suppress(RayActorError):
                answers.append(ray.get(call, timeout=seconds))
        return answers


def _close(proxy: Any) -> None:
    """Run in the proxy's process, or the manager's."""
    (close_haproxy if is_haproxy_manager(proxy) else close_servers)(proxy)


def _is_closed(proxy: Any) -> bool:
    return (is_haproxy_closed if is_haproxy_manager(proxy) else are_servers_closed)(proxy)
