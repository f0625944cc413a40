"""Distributions as an SVG: for each metric, the share of samples that took at most that long. Needs
no plotting library.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

WIDTH, HEIGHT = 360, 210  # size of a curve's frame, in pixels
LEFT, TOP, RIGHT, BOTTOM = 56, 34, 18, 40  # around it
COLUMNS = 2
HEADER = 36
LEVELS = (0.0, 0.5, 0.9, 0.99, 1.0)  # shares with a grid line and a label
MAX_STEPS = 400  # of a curve; more samples are reduced to as many quantiles
LEAST_MS = 0.01  # shorter times, for example a lag of 0, are drawn here
STYLE = (
    "text{font:11px sans-serif;fill:#333}.name{font-size:13px;font-weight:bold}"
    ".rule{stroke:#ddd}.frame{fill:none;stroke:#888}.curve{fill:none;stroke:#0b6e99;stroke-width:1.8}"
)


def write_plot(path: Path, title: str, samples: Mapping[str, Sequence[float]]) -> None:
    """`samples` in ms, by metric; those without any are left out."""
    shown = {name: values for name, values in samples.items() if values}
    cell_width, cell_height = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM
    width, height = COLUMNS * cell_width, HEADER + math.ceil(len(shown) / COLUMNS) * cell_height
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f'<style>{STYLE}</style><rect width="100%" height="100%" fill="white"/>',
        f'<text class="name" x="{LEFT}" y="24">{escape(title)}</text>',
    ]
    for number, (name, values) in enumerate(shown.items()):
        x, y = number % COLUMNS * cell_width + LEFT, HEADER + number // COLUMNS * cell_height + TOP
        parts.append(f'<g transform="translate({x} {y})">{_panel(name, values)}</g>')
    path.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")


def _panel(name: str, values: Sequence[float]) -> str:
    samples = np.maximum(values, LEAST_MS)
    shares = np.arange(1, min(len(values), MAX_STEPS) + 1) / min(len(values), MAX_STEPS)
    quantiles = np.quantile(samples, shares, method="inverted_cdf")
    marks = _marks(float(samples.min()), float(samples.max()))
    first, last = math.log(marks[0]), math.log(marks[-1])
    x_of = (np.log(quantiles) - first) / (last - first) * WIDTH
    parts = [f'<text class="name" x="0" y="-10">{escape(name)}, {len(values)} samples</text>']
    for share in LEVELS:
        y = HEIGHT * (1 - share)
        parts.append(f'<path class="rule" d="M0 {y:.1f}H{WIDTH}"/>')
        if share != 0.99:  # too near to the next
            parts.append(f'<text x="-6" y="{y + 4:.1f}" text-anchor="end">{100 * share:.0f}</text>')
    for mark in marks:
        x = (math.log(mark) - first) / (last - first) * WIDTH
        parts.append(f'<path class="rule" d="M{x:.1f} 0V{HEIGHT}"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT + 16}" text-anchor="middle">{mark:g}</text>')
    # The curve steps up at each sample: there are no measurements between two samples.
    steps = zip(x_of, pairwise([0.0, *shares]), strict=True)
    corners = [(x, share) for x, below_and_above in steps for share in below_and_above]
    points = " ".join(f"{x:.1f},{HEIGHT * (1 - share):.1f}" for x, share in corners)
    parts.append(f'<rect class="frame" width="{WIDTH}" height="{HEIGHT}"/><polyline class="curve" points="{points}"/>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT + 32}" text-anchor="middle">ms</text>')
    parts.append(
        f'<text transform="translate({12 - LEFT} {HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
        "share of samples, %</text>"
    )
    return "".join(parts)


def _marks(least: float, most: float) -> list[float]:
    """Labels of a logarithmic axis that includes both: at least two, at 1, 2 and 5 of each decade,
    or only at 1 if there are many decades.
    """
    decades = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 2)
    digits = (1, 2, 5) if len(decades) <= 4 else (1,)
    marks = [float(f"{digit}e{decade}") for decade in decades for digit in digits]
    start = max(i for i, mark in enumerate(marks) if mark <= least)
    stop = min(i for i, mark in enumerate(marks) if mark > most)
    return marks[start : stop + 1]
