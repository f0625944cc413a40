"""Histograms with fixed buckets, as Prometheus has them; the buckets are those of vLLM."""

from bisect import bisect_left
from collections.abc import Sequence

# Upper bounds, inclusive; one more bucket has no bound. Seconds:
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
BETWEEN_TOKENS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
OF_A_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
OF_A_BLOCK = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
    *(10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0),
)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
# Tokens:
OF_A_STEP = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def up_to(most: int) -> tuple[int, ...]:
    """Bounds 1, 2, 5, 10, 20, ... that do not exceed `most`."""
    series = (mantissa * 10**exponent for exponent in range(len(str(most))) for mantissa in (1, 2, 5))
    return tuple(bound for bound in series if bound <= most)


class Histogram:
    """How many values there were in each bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def values(self) -> list[float]:
        """The counts, then the sum: two histograms add up element by element."""
        return [*self.counts, self.sum]
