"""What an engine replica knows of its process, and of what Serve and Ray have in mind for it."""

import ctypes
import signal

import ray
from ray import serve
from ray.serve.exceptions import RayServeException


def actor_name() -> str:
    """Of this process' Serve replica; empty outside Serve."""
    try:
        serve.get_replica_context()
    except RayServeException:
        return ""
    name: str = ray.get_runtime_context().get_actor_name()
    return name


def end_at_sigterm() -> None:
    """Have SIGTERM end this process at once: what runs on it goes on elsewhere.

    Ray's own handler waits until every call has ended. It takes new calls meanwhile and never
    begins them, so new requests would wait for the longest stream. Python sets handlers from the
    main thread only, and that thread is Ray's.
    """
    set_handler = ctypes.CDLL(None).signal
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    set_handler(signal.SIGTERM, signal.SIG_DFL)


def node_id() -> str:
    found: str = ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""
    return found


def is_being_stopped() -> bool:
    """Whether Serve has told this process' replica to stop.

    A deployment hears of it (by `__del__`) only once its requests have ended, which is what should
    come of it. Serve keeps the knowledge to itself, so it is looked up where Serve has it; not
    found, the replica is killed after its grace, and its requests go on elsewhere all the same.
    """
    for actor in ray._private.worker.global_worker.actors.values() if ray.is_initialized() else ():
        if getattr(getattr(actor, "_replica_impl", None), "_shutting_down", False):
            return True
    return False
