"""What a benchmark's figures depend on: date, command, machine and versions."""

import importlib.metadata
import os
import platform
import re
import shlex
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cluster.version import VERSION
from engine.errors import without_secret

_KEY = re.compile(r"--a(?:p|pi|pi-|pi-k|pi-ke|pi-key)?")  # `--api-key`, also shortened
_WITH_KEY = re.compile(rf"^({_KEY.pattern}=).*", re.DOTALL)
PACKAGES = ("torch", "numpy", "ray", "transformers")


def environment() -> dict[str, Any]:
    """Date, command, machine and versions."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(_without_secrets(sys.orig_argv)),
        "machine": _machine(),
        "versions": {"squadron": VERSION, "python": platform.python_version(), **_versions()},
    }


def _without_secrets(words: list[str]) -> list[str]:
    options = ["", *words]  # each before its value
    return [
        "..." if _KEY.fullmatch(option) else _WITH_KEY.sub(r"\1...", without_secret(word))
        for option, word in zip(options, words, strict=False)
    ]


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
