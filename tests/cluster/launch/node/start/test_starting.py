"""A Ray that is slow to start, or does not."""

import ctypes
import os
import signal

import pytest
import ray
from ray._private import services, utils
from ray.exceptions import RaySystemError

from cluster.launch.node.start.starting import init, start
from engine.errors import InvalidConfig


@pytest.mark.parametrize("is_late", [False, True])
def test_a_node_of_ray_s_is_looked_for_as_long_as_we_say(monkeypatch: pytest.MonkeyPatch, is_late: bool) -> None:
    """Ray gives up at the first look that fails after half a minute."""
    node, looks = {"node": "there"}, iter([RuntimeError("not there"), RuntimeError("not there"), None])

    def look(*_: object) -> dict[str, str]:
        if error := next(looks):
            raise error
        return node

    monkeypatch.setattr(services, "get_node", look)
    monkeypatch.setattr("ray.init", lambda **_: services.get_node("address", "id"))
    monkeypatch.setattr("cluster.launch.node.start.starting.LOOK_SECONDS", 0.0)
    if is_late:
        monkeypatch.setattr("cluster.launch.node.start.starting.START_SECONDS", -1.0)
        with pytest.raises(InvalidConfig, match="not there"):
            start()
    else:
        assert start() is node
    assert services.get_node is look


def test_ray_that_does_not_start_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """For this, Ray raises a bare Exception."""

    def fail(**options: object) -> None:
        raise Exception("The current node timed out during startup. This could happen because\nof much.")

    monkeypatch.setattr("ray.init", fail)
    with pytest.raises(
        InvalidConfig, match=r"too busy or too full: The current node timed out during startup\. [\w ]+$"
    ):
        start()


def test_who_asks_after_a_cluster_has_ended_starts_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Serve's threads do that outlive it. Ray's own hook calls `ray.init`."""
    started: list[dict[str, object]] = []
    monkeypatch.setattr("ray._private.auto_init_hook.enable_auto_connect", True)
    monkeypatch.setattr("ray.init", lambda **options: started.append(options))
    init(address="local")
    with pytest.raises(RaySystemError):
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    assert started == [{"address": "local"}]


@pytest.mark.parametrize("fails", [False, True])
def test_a_sigterm_stays_ours_while_ray_starts_and_after(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """Also after an attempt that has failed: another follows."""
    came: list[int] = []

    def connect(**_: object) -> None:
        utils.set_sigterm_handler(lambda number, _: pytest.fail(f"Ray handles signal {number}"))  # as `ray.init` does
        os.kill(os.getpid(), signal.SIGTERM)
        libc = ctypes.CDLL(None)  # and in C++, where it aborts
        libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
        libc.signal(signal.SIGTERM, ctypes.cast(libc.abort, ctypes.c_void_p))
        if fails:
            raise ConnectionError("not there")

    handler = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        monkeypatch.setattr("ray.init", connect)
        if fails:
            with pytest.raises(ConnectionError):
                init(address="local")
        else:
            init(address="local")
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert came == [signal.SIGTERM] * 2
