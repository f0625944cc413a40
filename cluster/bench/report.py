"""A benchmark's results as a table and as JSON, with everything that the figures depend on."""

import importlib.metadata
import json
import os
import platform
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from cluster.version import VERSION

PERCENTILES = (50, 90, 99)
PACKAGES = ("torch", "numpy", "ray", "transformers")
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


def environment() -> dict[str, Any]:
    """Date, command, machine and versions."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(sys.orig_argv),
        "machine": _machine(),
        "versions": {"squadron": VERSION, "python": platform.python_version(), **_versions()},
    }


def _machine() -> dict[str, Any]:
    """Includes the load average, which shows whether other work disturbed the measurement."""
    gpus = Path("/proc/driver/nvidia/gpus").glob("*/information")
    return {
        "cpu": _field(Path("/proc/cpuinfo"), "model name") or platform.processor(),
        "num_cpus": len(os.sched_getaffinity(0)),
        "gpus": [_field(path, "Model") for path in gpus],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _field(path: Path, name: str) -> str:
    """The first value of that name in a file of "name : value" lines."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = (line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name)
    return next(found, "")
