"""Connects this process to a Ray cluster: a new one of this machine, or a running one."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import ray
from ray._private.grpc_utils import init_grpc_channel
from ray._private.worker import BaseContext

from cluster.launch.node.within import answers
from engine.errors import InvalidConfig

GRPC_SECONDS = 15.0  # for a server at --ray-address to answer
START_SECONDS = 120.0  # for Ray's processes on this machine to be there
LOOK_SECONDS = 0.2


def start(**options: Any) -> BaseContext:
    """A cluster of this machine; raises InvalidConfig if Ray's own processes do not start within
    START_SECONDS.
    """
    try:
        with _patience():
            return _init(address="local", **options)
    except Exception as error:  # Ray raises bare ones, too
        reason = str(error).strip().partition("\n")[0]
        raise InvalidConfig(f"Ray did not start on this machine, which may be too busy or too full: {reason}") from None


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """Ray looks for its new node for half a minute, a number in its code, and then gives up: too
    soon on a machine whose cores are taken. Meanwhile each of its looks lasts as long as we allow.
    """
    services = ray._private.services
    look, end = services.get_node, time.monotonic() + START_SECONDS

    def look_again(*args: Any) -> Any:
        while True:
            try:
                return look(*args)
            except RuntimeError:  # the node is not there
                if time.monotonic() > end:
                    raise
            time.sleep(LOOK_SECONDS)

    services.get_node = look_again
    try:
        yield
    finally:
        services.get_node = look


@contextlib.contextmanager
def connected(address: str, **options: Any) -> Iterator[BaseContext]:
    """A connection to a running cluster, for as long as the context lasts. Raises InvalidConfig,
    quickly if nothing listens there or it is not Ray: Ray itself would try for minutes.
    """
    server = address.removeprefix("ray://")
    is_named = server.rpartition(":")[2].isdecimal()  # "auto" has no port
    if is_named and not answers(server):
        raise InvalidConfig(
            f"nothing answers at --ray-address {address}; check that the cluster is up and the port that of `ray start`"
        )
    if is_named and not _speaks_grpc(server):
        raise InvalidConfig(
            f"what listens at --ray-address {address} did not answer as Ray does within {GRPC_SECONDS:.0f} s; "
            "check that the port is that of `ray start`"
        )
    try:
        context = _init(address=address, **options)
    except ConnectionError as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidConfig(f"cannot connect to a Ray cluster at --ray-address {address}: {reason}") from None
    try:
        yield context
    finally:
        ray.shutdown()


def _init(**options: Any) -> BaseContext:
    """Without Ray's own handler of SIGTERM, in whose place the one before is put back."""
    handler = signal.getsignal(signal.SIGTERM)
    context = ray.init(**options)
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
    return context


def _speaks_grpc(server: str) -> bool:
    """Whether the server at host:port answers like gRPC, before any authentication."""
    with init_grpc_channel(server, [("grpc.enable_http_proxy", 0)]) as channel:  # as Ray's own connections
        try:
            grpc.channel_ready_future(channel).result(timeout=GRPC_SECONDS)
        except grpc.FutureTimeoutError:
            return False
    return True
