"""A benchmark's results, as a table and as JSON."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cluster.bench.environment import environment

PERCENTILES = (50, 90, 99)
SHOWN_FAILURES = 8


@dataclass(frozen=True, slots=True)
class Outcome:
    """`figures` are counts and rates, by name; `samples` are times in ms, by name, for percentiles.
    Failed requests are counted in `failures`, by error, and otherwise affect only the duration.
    """

    num_requests: int
    figures: dict[str, float]
    samples: dict[str, list[float]]
    failures: Counter[str] = field(default_factory=Counter)


def rates(num_requests: int, num_input: int, num_output: int, seconds: float) -> dict[str, float]:
    """The figures of requests that ended well, with their input and output tokens."""
    return {
        "duration, s": seconds,
        "input tokens": num_input,
        "output tokens": num_output,
        "requests/s": num_requests / seconds,
        "output tok/s": num_output / seconds,
        "total tok/s": (num_input + num_output) / seconds,
    }


def count_failures(errors: Iterable[str | None]) -> Counter[str]:
    """How often each error occurs; None: a request that ended well."""
    return Counter(error for error in errors if error is not None)


def table(outcome: Outcome) -> str:
    failed = outcome.failures.total()
    rows = [f"{'requests':<28}{outcome.num_requests - failed:>12} done, {failed} failed"]
    rows += [f"{name:<28}{value:>12.2f}" for name, value in outcome.figures.items()]
    rows += ["", f"{'ms':<28}" + "".join(f"{name:>12}" for name in ("mean", *map("p{}".format, PERCENTILES)))]
    for name, values in outcome.samples.items():
        rows.append(f"{name:<28}" + "".join(f"{value:>12.2f}" for value in summarize(values).values()))
    if failed:
        rows += ["", *(f"{count:>6} × {error}" for error, count in outcome.failures.most_common(SHOWN_FAILURES))]
        if len(outcome.failures) > SHOWN_FAILURES:
            rows.append(f"       and {len(outcome.failures) - SHOWN_FAILURES} other errors")
    return "\n".join(rows)


def summarize(values: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles; empty if there are no values."""
    if not values:
        return {}
    found = np.percentile(values, PERCENTILES).tolist()
    return {"mean": float(np.mean(values))} | {f"p{p}": value for p, value in zip(PERCENTILES, found, strict=True)}


def write_json(path: Path, benchmark: str, outcome: Outcome) -> None:
    result = {
        "benchmark": benchmark,
        **environment(),
        "num_requests": outcome.num_requests,
        "num_failed": outcome.failures.total(),
        "failures": dict(outcome.failures),
        "figures": outcome.figures,
        "milliseconds": {name: summarize(values) for name, values in outcome.samples.items()},
        "samples": {name: [round(value, 4) for value in values] for name, values in outcome.samples.items()},
    }
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
