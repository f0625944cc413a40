"""What one process takes whole when the tests are dealt out to several (`tests/lanes.py`), and what
one test leaves to the next.
"""

import os
import sys

import pytest

CORES = os.sched_getaffinity(0)

SERVER = "server"  # the fixture of tests/end_to_end, which is started once
RAY = ("cluster/workers/", "cluster/launch/", "cluster/gateway/streams/test_stream_store", "end_to_end/")
WAITING = (SERVER, *(f"tests/{path}" for path in RAY))


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/end_to_end/") and SERVER in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(SERVER))


@pytest.hookimpl(tryfirst=True)  # before fixtures
def pytest_runtest_setup() -> None:
    """An engine binds the thread that starts it to cores, which processes that are started later
    would inherit, and sets the number of threads that all of the process computes with.
    """
    os.sched_setaffinity(0, CORES)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
