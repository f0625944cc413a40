"""A replica's process, of an engine or of a gateway, as Serve and Ray see it."""

import ctypes
import os
import signal

import ray
from ray import serve
from ray.serve.exceptions import RayServeException

from cluster.logs import log_beside_serve
from cluster.sockets import LOOPBACK


def enter_replica() -> str:
    """To be called first in every replica: it logs where Serve does. Returns `actor_name`."""
    log_beside_serve()
    return actor_name()


def actor_name() -> str:
    """Of this process' Serve replica; empty outside Serve."""
    try:
        serve.get_replica_context()
    except RayServeException:
        return ""
    name: str = ray.get_runtime_context().get_actor_name()
    return name


def end_at_sigterm() -> None:
    """Let SIGTERM end this process at once, as long as it starts; see `cluster.stop_signal`."""
    set_handler = ctypes.CDLL(None).signal
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    set_handler(signal.SIGTERM, signal.SIG_DFL)


def end_process() -> None:
    """End this one at once, as a failed one: Serve replaces it."""
    os._exit(1)


def node_id() -> str:
    found: str = ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""
    return found


def node_address() -> str:
    """That of its node which Ray uses."""
    found: str = ray.util.get_node_ip_address() if ray.is_initialized() else LOOPBACK
    return found


def is_being_stopped() -> bool:
    """Whether Serve has told this process' replica to stop.

    A deployment is told (by `__del__`) only after its requests have ended, but they should end
    because of it. Serve has no API for this, so Serve's internal flag is read. If it is not found,
    the replica is killed after its grace period, and its requests continue elsewhere all the same.
    """
    for actor in ray._private.worker.global_worker.actors.values() if ray.is_initialized() else ():
        if getattr(getattr(actor, "_replica_impl", None), "_shutting_down", False):
            return True
    return False
