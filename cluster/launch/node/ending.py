"""Ends this process' connection to Ray, with the processes that Ray has started from here."""

import logging
import threading
from typing import Any

import ray
from ray._private.worker import global_worker
from ray.exceptions import RaySystemError

TELLING = ("ray._raylet", "asyncio")  # loggers of who asks it meanwhile, Serve's callbacks among them
ENDING = "this process' connection to Ray is ending"


class _Ending:
    """In place of Ray's core worker while one thread ends it: all others get an error from it. Of
    the core worker itself they would get the end of the process: whoever asks it after its shutdown
    has begun (a thread of Serve's that still polls the controller, a call that was given up) makes
    it exit at once, without a word to Python.
    """

    def __init__(self, core_worker: Any) -> None:
        self._core_worker = core_worker
        self._thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        if threading.get_ident() != self._thread:
            raise RaySystemError(f"{ENDING} ({name})")
        return getattr(self._core_worker, name)


def end_connection() -> None:
    """As `ray.shutdown`, whatever other threads of this process still ask Ray for."""
    for name in TELLING:
        logging.getLogger(name).addFilter(_is_news)
    if hasattr(global_worker, "core_worker"):
        global_worker.core_worker = _Ending(global_worker.core_worker)
    ray.shutdown()


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a record tells more than that Ray was asked, or answered, while it ended."""
    return record.exc_info is None or ENDING not in str(record.exc_info[1])
