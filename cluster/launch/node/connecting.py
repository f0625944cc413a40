"""Connects this process to a running Ray cluster."""

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc
from ray._private.grpc_utils import init_grpc_channel
from ray._private.worker import BaseContext

from cluster.launch.node.ending import end_connection
from cluster.launch.node.start.starting import init
from cluster.launch.node.within import answers
from engine.errors import InvalidConfig

GRPC_SECONDS = 15.0  # for a server at --ray-address to answer


@contextlib.contextmanager
def connected(address: str, **options: Any) -> Iterator[BaseContext]:
    """A connection to a running cluster, for as long as the context lasts. Raises InvalidConfig,
    quickly if nothing listens there or it is not Ray: Ray itself would try for minutes.
    """
    server = address.removeprefix("ray://")
    is_named = address != "auto"
    if is_named and not _is_host_and_port(server):  # of some other words Ray makes a cluster of its own
        raise InvalidConfig(f"--ray-address {address!r} is neither HOST:PORT, nor ray://HOST:PORT, nor auto")
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
        context = init(address=address, **options)
    except ConnectionError as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidConfig(f"cannot connect to a Ray cluster at --ray-address {address}: {reason}") from None
    except RuntimeError as error:
        if "Version mismatch" not in str(error):
            raise
        raise InvalidConfig(
            f"{_told(error)} Ray refuses another patch level of itself or of Python: run this with the cluster's "
            "versions, in its image or with `pip install --constraint constraints.txt`"
        ) from None
    try:
        yield context
    finally:
        end_connection()


def _is_host_and_port(server: str) -> bool:
    host, _, port = server.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 1 << 16


def _told(error: RuntimeError) -> str:
    """Ray's message about two versions, without its line breaks."""
    return " ".join(str(error).split()) + "."


def _speaks_grpc(server: str) -> bool:
    """Whether the server at host:port answers like gRPC, before any authentication."""
    with init_grpc_channel(server, [("grpc.enable_http_proxy", 0)]) as channel:  # as Ray's own connections
        try:
            grpc.channel_ready_future(channel).result(timeout=GRPC_SECONDS)
        except grpc.FutureTimeoutError:
            return False
    return True
