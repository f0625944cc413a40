"""What one test leaves to the next."""

import os
import sys
from functools import cache

import pytest

CORES = os.sched_getaffinity(0)
ANSWER_SECONDS = 60.0  # from a server, on a machine where many tests run; httpx allows 5


@pytest.hookimpl(tryfirst=True)  # before fixtures
def pytest_runtest_setup() -> None:
    """An engine binds the thread that starts it to cores, which processes that are started later
    would inherit, and sets the number of threads that all of the process computes with.
    """
    os.sched_setaffinity(0, CORES)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    if "httpx" in sys.modules:  # whose functions hold this object: who says no other time gets this one
        sys.modules["httpx"]._config.DEFAULT_TIMEOUT_CONFIG.__init__(timeout=ANSWER_SECONDS)
        # Each client would read all authorities anew, for longer than most of them ask.
        transport = sys.modules["httpx"]._transports.default
        if not hasattr(transport.create_ssl_context, "cache_info"):
            transport.create_ssl_context = cache(transport.create_ssl_context)
