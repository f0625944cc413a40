"""Sums over processes, of which some may run another version."""

from cluster.metrics.figures import summed, without


def test_each_series_is_summed_and_histograms_element_by_element():
    one = {("steps", ()): 3.0, ("seen", ("a",)): 1.0, ("times", ()): [1, 0, 0.5]}
    two = {("steps", ()): 4.0, ("seen", ("b",)): 2.0, ("times", ()): [0, 2, 7.0]}
    expected = {("steps", ()): 7.0, ("seen", ("a",)): 1.0, ("seen", ("b",)): 2.0, ("times", ()): [1, 2, 7.5]}
    assert summed([one, two]) == expected
    assert one["times", ()] == [1, 0, 0.5]


def test_a_histogram_with_other_buckets_is_left_out():
    assert summed([{("times", ()): [1, 0.5]}, {("times", ()): [1, 2, 0.5]}]) == {("times", ()): [1, 0.5]}


def test_what_has_been_added_since():
    earlier = {("steps", ()): 3.0, ("times", ()): [1, 0, 0.5]}
    later = {("steps", ()): 5.0, ("seen", ("a",)): 1.0, ("times", ()): [1, 2, 7.5]}
    assert without(later, earlier) == {("steps", ()): 2.0, ("seen", ("a",)): 1.0, ("times", ()): [0, 2, 7.0]}
    assert without(later, {}) == later
