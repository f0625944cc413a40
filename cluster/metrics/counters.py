"""The counters of one process."""

from collections import Counter
from collections.abc import Mapping, Sequence

from cluster.metrics.figures import Figures, Series
from engine.records.histogram import Histogram

MAX_SERIES = 1024  # of a metric; values of labels beyond these are counted as OTHER
OTHER = "other"


class Counters:
    """Lives in one event loop. However clients choose what ends up in a label, the number of series
    is bounded.
    """

    def __init__(self, bounds: Mapping[str, Sequence[float]]) -> None:
        """`bounds`: of the buckets of each histogram, by name."""
        self.bounds = dict(bounds)
        self._totals: dict[Series, float] = {}
        self._num_series: Counter[str] = Counter()
        self._histograms = {name: Histogram(each) for name, each in bounds.items()}

    def count(self, name: str, *labels: str, by: float = 1.0) -> None:
        series = (name, labels)
        if series not in self._totals:
            if self._num_series[name] >= MAX_SERIES:
                series = (name, (OTHER,) * len(labels))
            self._num_series[name] += series not in self._totals
        self._totals[series] = self._totals.get(series, 0.0) + by

    def observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)

    def figures(self) -> Figures:
        return {**self._totals, **{(name, ()): seen.values() for name, seen in self._histograms.items()}}
