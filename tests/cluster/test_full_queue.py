"""What a gateway tells HAProxy of a full queue, and what it hears."""

import pytest

from cluster.full_queue import FULL_MS, WAIT, full_headers, num_refused


@pytest.mark.parametrize(
    ("seconds", "milliseconds", "wait"), [(0.1, "50", "1"), (2.0, "100", "2"), (7.6, "380", "8"), (500.0, "500", "60")]
)
def test_haproxy_may_refuse_for_a_small_part_of_what_the_queue_takes(
    seconds: float, milliseconds: str, wait: str
) -> None:
    assert full_headers(seconds) == {FULL_MS: milliseconds, WAIT: wait}


@pytest.mark.parametrize(("value", "num"), [("41", 41), ("", 0), ("-1", 0), ("x", 0), ("9" * 10, 0), ("\u0663", 0)])
def test_only_a_number_is_a_number_of_refusals(value: str, num: int) -> None:
    assert num_refused(value) == num
