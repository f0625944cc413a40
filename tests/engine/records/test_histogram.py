"""Buckets as Prometheus has them: a bound belongs to its bucket."""

import pytest

from engine.records import histogram
from engine.records.histogram import Histogram


def test_a_value_is_in_the_first_bucket_whose_bound_it_does_not_exceed():
    seen = Histogram((1.0, 2.0))
    seen.observe(1.0)
    seen.observe(1.5, times=3)
    seen.observe(100.0)
    assert seen.values() == [1, 3, 1, 105.5]


@pytest.mark.parametrize(
    ("bounds", "count"),
    [(histogram.FIRST_TOKEN, 22), (histogram.BETWEEN_TOKENS, 19), (histogram.OF_A_REQUEST, 21)],
)
def test_the_bounds_are_as_many_as_vllm_has_and_ascend(bounds, count):
    assert len(bounds) == count and list(bounds) == sorted(set(bounds))


def test_bounds_for_counts_of_tokens_are_1_2_5_up_to_the_longest_sequence():
    assert histogram.up_to(100) == (1, 2, 5, 10, 20, 50, 100)
    assert histogram.up_to(2048) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
    assert histogram.up_to(1) == (1,)
