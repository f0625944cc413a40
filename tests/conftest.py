"""What one process takes whole when the tests are dealt out to several (`tests/lanes.py`)."""

import pytest

SERVER = "server"  # the fixture of tests/end_to_end, which is started once
RAY = ("cluster/workers/", "cluster/launch/", "cluster/gateway/streams/test_stream_store", "end_to_end/")
WAITING = (SERVER, *(f"tests/{path}" for path in RAY))


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/end_to_end/") and SERVER in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(SERVER))
