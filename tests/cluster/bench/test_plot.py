"""Curves that a report draws."""

import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from cluster.bench.plot import write_plot


@pytest.mark.parametrize("values", [[5.0], [0.0, 0.0], [0.3, 4000.0], list(np.geomspace(1, 2, 50))])
def test_a_curve_stays_within_its_frame(tmp_path: Path, values: list[float]) -> None:
    path = tmp_path / "plot.svg"
    write_plot(path, "a < b", {"TTFT": values, "none": []})
    (curve,) = ElementTree.parse(path).findall(".//{*}polyline")
    points = [tuple(map(float, point.split(","))) for point in curve.get("points", "").split()]
    assert all(0 <= x <= 360 and 0 <= y <= 210 for x, y in points)
    assert points == sorted(points, key=lambda point: (point[0], -point[1]))
    assert (points[0][1], points[-1][1]) == (210, 0)
    assert all(before[0] == after[0] or before[1] == after[1] for before, after in pairwise(points))
    assert "share of samples, %" in [text.text for text in ElementTree.parse(path).findall(".//{*}text")]
