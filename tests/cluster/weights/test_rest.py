"""What is written down of pauses and sleep, and what an engine that starts later is told."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cluster.head import store
from cluster.weights.record import WeightsRecord
from cluster.weights.rest import RUNS, Rest

AWAKE = ("wake_up", (None,))
SLEEP, PAUSE, RESUME = ("sleep", (1, "abort")), ("pause", ("keep",)), ("resume", ())


@pytest.mark.parametrize(
    ("told", "calls"),
    [
        ([], [RESUME, AWAKE]),
        ([PAUSE], [PAUSE, AWAKE]),
        ([PAUSE, RESUME], [RESUME, AWAKE]),
        ([SLEEP], [RESUME, SLEEP]),
        ([PAUSE, SLEEP, AWAKE], [PAUSE, AWAKE]),
        ([PAUSE, SLEEP, RESUME], [RESUME, SLEEP]),
        ([("sleep", (2, "keep")), SLEEP], [RESUME, ("sleep", (2, "abort"))]),
        ([SLEEP, ("wake_up", (["weights"],))], [RESUME, SLEEP, ("wake_up", (("weights",),))]),
        ([SLEEP, ("wake_up", (["weights"],)), SLEEP], [RESUME, SLEEP]),
        ([SLEEP, ("wake_up", (["weights"],)), ("wake_up", (["kv_cache"],))], [RESUME, AWAKE]),
        ([("wake_up", (["weights"],)), SLEEP], [RESUME, SLEEP]),
    ],
)
def test_what_an_engine_is_told_that_starts_later(told: list[Any], calls: list[Any]) -> None:
    rest = RUNS
    for what, arguments in told:
        rest = rest.after(what, *arguments)
    assert (rest.number, rest.calls()) == (len(told), calls)


def test_the_last_call_counts_for_one_run_of_the_application(key_values) -> None:
    record = WeightsRecord("squadron", "engines", "run", "/model").rest
    assert record.read() == RUNS
    assert record.change("sleep", 2, "abort") == Rest(1, sleep_level=2)
    assert record.change("wake_up", ["weights"]) == Rest(2, sleep_level=2, awake=("weights",))
    assert record.read() == Rest(2, sleep_level=2, awake=("weights",))
    assert WeightsRecord("squadron", "engines", "the next run", "/model").rest.read() == RUNS


def test_of_two_calls_at_the_same_time_one_follows_the_other(key_values) -> None:
    record = WeightsRecord("squadron", "engines", "run", "/model").rest
    with ThreadPoolExecutor() as pool:
        told = [pool.submit(record.change, *call) for call in [("pause", "keep"), ("sleep", 1, "abort")] * 20]
    assert sorted(each.result().number for each in told) == list(range(1, 41))
    assert record.read() == Rest(40, pause="keep", sleep_level=1)


def test_a_gateway_that_dies_before_it_has_written_where_the_last_call_is_has_made_it(
    key_values, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = WeightsRecord("squadron", "engines", "run", "/model").rest
    record.change("pause", "keep")
    monkeypatch.setattr(store, "write", lambda *_: None)
    record.change("sleep", 1, "abort")
    assert record.read() == Rest(2, pause="keep", sleep_level=1)
