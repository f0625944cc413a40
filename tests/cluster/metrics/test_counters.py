"""Counters are bounded, whatever becomes a label."""

from cluster.metrics.counters import MAX_SERIES, Counters


def test_counts_and_histograms_are_figures():
    counters = Counters({"seconds": (1.0, 2.0)})
    counters.count("ended", "stop")
    counters.count("ended", "stop", by=2)
    counters.observe("seconds", 1.5)
    assert counters.figures() == {("ended", ("stop",)): 3.0, ("seconds", ()): [0, 1, 0, 1.5]}


def test_labels_beyond_the_limit_are_counted_together():
    counters = Counters({})
    for number in range(MAX_SERIES + 100):
        counters.count("seen", str(number), "x")
    counters.count("seen", "0", "x")
    figures = counters.figures()
    assert len(figures) == MAX_SERIES + 1
    assert figures["seen", ("other", "other")] == 100 and figures["seen", ("0", "x")] == 2
