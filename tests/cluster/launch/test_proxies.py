"""Serve's proxies, met as the application starts, by real actors under their names."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import serve
from ray.serve._private.constants import SERVE_NAMESPACE, SERVE_PROXY_NAME
from ray.serve._private.utils import format_actor_name

from cluster.launch import proxies
from cluster.launch.proxies import Proxies


class Proxy:
    """One that is busy from the start, until it is let go."""

    def __init__(self) -> None:
        self._may_go = threading.Event()
        self.is_closed = False

    def be_busy(self) -> None:
        self._may_go.wait()

    @ray.method(concurrency_group="control")
    def let_go(self) -> None:
        self._may_go.set()


@pytest.mark.long
def test_a_proxy_that_does_not_answer_at_the_start_is_closed_at_the_end(
    cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "status", lambda: SimpleNamespace(proxies=["node"]))
    monkeypatch.setattr(proxies, "MEET_SECONDS", 0.2)
    monkeypatch.setattr(proxies, "_close", close)
    monkeypatch.setattr(proxies, "_is_closed", is_closed)
    name = format_actor_name(SERVE_PROXY_NAME, "node")
    actor = ray.remote(concurrency_groups={"control": 1})(Proxy).options(name=name, namespace=SERVE_NAMESPACE).remote()
    busy = actor.be_busy.remote()
    known = Proxies()
    known.meet()
    ray.get(actor.let_go.remote())
    ray.get(busy)
    known.close()
    assert ray.get(actor.__ray_call__.remote(is_closed))


def close(proxy: Any) -> None:
    proxy.is_closed = True


def is_closed(proxy: Any) -> bool:
    return bool(proxy.is_closed)
