"""How many engines a load needs."""

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.launch.config.load_policy import LoadPolicy


def wanted(policy: LoadPolicy, loads: list[float], now: int, num_requests: float = 1) -> int:
    by_replica = {str(index): load for index, load in enumerate(loads)}
    context: Any = SimpleNamespace(
        aggregated_metrics={"load": by_replica} if loads else None,
        total_num_requests=num_requests,
        target_num_replicas=now,
    )
    number, state = policy(context)
    assert state == {}
    return number


@pytest.mark.parametrize(
    ("loads", "now", "number"),
    [
        ([0.7], 1, 1),
        ([0.71], 1, 2),
        ([3.0], 1, 5),
        ([0.3, 0.4, 0.1], 3, 2),  # one would be full, so two of three
        ([0.3, 0.27], 2, 2),  # one would do, and not be calm
        ([0.3, 0.25], 2, 1),
        ([], 0, 1),  # somebody waits for the first
    ],
)
def test_as_many_as_keep_to_the_target(loads: list[float], now: int, number: int) -> None:
    assert wanted(LoadPolicy(target_load=0.7, standby_engines=0), loads, now) == number
    assert wanted(LoadPolicy(target_load=0.7, standby_engines=2), loads, now + 2) == number + 2


def test_none_without_requests() -> None:
    assert wanted(LoadPolicy(0.7, 0), [0.0], now=1, num_requests=0) == 0
    assert wanted(LoadPolicy(0.7, 1), [], now=1, num_requests=0) == 1
    assert wanted(LoadPolicy(0.7, 0), [0.0], now=1) == 1, "a request may be on its way"
