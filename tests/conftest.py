"""What one test leaves to the next."""

import os
import sys

import pytest

CORES = os.sched_getaffinity(0)


@pytest.hookimpl(tryfirst=True)  # before fixtures
def pytest_runtest_setup() -> None:
    """An engine binds the thread that starts it to cores, which processes that are started later
    would inherit, and sets the number of threads that all of the process computes with.
    """
    os.sched_setaffinity(0, CORES)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
