"""Figures of one process, or summed over many."""

from collections.abc import Iterable
from typing import TypeAlias

Series: TypeAlias = tuple[str, tuple[str, ...]]  # a metric's name, and the values of its labels
# A total, or a histogram: its counts by bucket, then its sum.
Figures: TypeAlias = dict[Series, float | list[float]]


def summed(parts: Iterable[Figures]) -> Figures:
    """Each series' sum. A histogram with other buckets than an earlier one's, of another version of
    the software, is left out.
    """
    total: Figures = {}
    for part in parts:
        for series, value in part.items():
            known = total.get(series)
            if known is None:
                total[series] = list(value) if isinstance(value, list) else value
            elif isinstance(value, list) and isinstance(known, list):
                if len(value) == len(known):
                    total[series] = [left + right for left, right in zip(known, value, strict=True)]
            elif not isinstance(value, list) and not isinstance(known, list):
                total[series] = known + value
    return total


def without(figures: Figures, earlier: Figures) -> Figures:
    """What has been added since `earlier` figures of the same process."""
    rest: Figures = {}
    for series, value in figures.items():
        before = earlier.get(series)
        if isinstance(value, list):
            before = before if isinstance(before, list) else [0.0] * len(value)
            rest[series] = [now - then for now, then in zip(value, before, strict=True)]
        else:
            rest[series] = value - before if isinstance(before, float | int) else value
    return rest
