"""Starts Ray on this machine, however busy it is."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import ray
from ray._private import auto_init_hook, utils
from ray._private.worker import BaseContext

from cluster.launch.node.ray_processes import dead_raylets
from cluster.launch.node.start import agents, lean
from engine.errors import InvalidConfig

START_SECONDS = 120.0  # for Ray's processes on this machine to be there
LOOK_SECONDS = 0.2


class RayletDied(InvalidConfig):
    """While it started. It gives its agents 15 seconds, a number in its code, and then gives up."""


def start(*, agents_may_be_late: bool = False, **options: Any) -> BaseContext:
    """A cluster of this machine; raises InvalidConfig if Ray's own processes do not start within
    START_SECONDS, RayletDied if another attempt may succeed, with agents that may be late.
    """
    late = agents.agents_may_be_late() if agents_may_be_late else contextlib.nullcontext()
    try:
        with patience(), late, lean.without_what_nobody_uses():
            return init(address="local", **options)
    except Exception as error:  # Ray raises bare ones, too
        kind = RayletDied if isinstance(error, RayletDied) else InvalidConfig
        reason = str(error).strip().partition("\n")[0]
        raise kind(f"Ray did not start on this machine, which may be too busy or too full: {reason}") from None


@contextlib.contextmanager
def patience() -> Iterator[None]:
    """For nodes that Ray starts in this process within the context. It looks for a new node for
    half a minute, a number in its code, and then gives up: too soon on a machine whose cores are
    taken. Meanwhile each of its looks lasts as long as we allow, or the raylet lives.
    """
    services = ray._private.services
    look, end, already = services.get_node, time.monotonic() + START_SECONDS, dead_raylets()

    def look_again(*args: Any) -> Any:
        while True:
            try:
                return look(*args)
            except RuntimeError:  # the node is not there
                if died := dead_raylets() - already:
                    raise RayletDied(f"its raylet (process {died.pop()}) has died") from None
                if time.monotonic() > end:
                    raise
            time.sleep(LOOK_SECONDS)

    services.get_node = look_again
    try:
        yield
    finally:
        services.get_node = look


def init(**options: Any) -> BaseContext:
    """Without Ray's own handlers of SIGTERM: that of Python would end this process with a status of
    its own, now or, where this attempt fails, in the next; that of its C++ would abort it. From now
    on, whoever asks Ray after this connection has ended, as a thread of Serve's may, gets an error:
    by itself, Ray would start a cluster for them, which nobody ends.
    """
    auto_init_hook.enable_auto_connect = False
    set_handler, utils.set_sigterm_handler = utils.set_sigterm_handler, lambda _: None
    try:
        return ray.init(**options)
    finally:
        utils.set_sigterm_handler = set_handler
        handler = signal.getsignal(signal.SIGTERM)  # as Python knows it: it is told of no other
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
