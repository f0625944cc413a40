"""How the suite shares two cores."""

import pytest

WITH_RAY = ("tests/cluster/", "tests/end_to_end/")
WITHOUT = ("tests/cluster/api/",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several processes, one runs all that starts Ray, in order: it waits more than it
    computes.
    """
    for item in items:
        if item.nodeid.startswith(WITH_RAY) and not item.nodeid.startswith(WITHOUT):
            item.add_marker(pytest.mark.xdist_group("ray"))
