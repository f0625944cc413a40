"""Whether the weights and the cache of a configuration fit into a machine's memory, where the CPU
computes.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from engine.errors import InvalidConfig
from engine.worker.device.control_groups import CGROUP, OWN, control_groups

MEMINFO = Path("/proc/meminfo")
# On CPU, bfloat16 weights may take only twelve bits each: a configuration is rejected only if it
# certainly does not fit.
LEAST_WEIGHT_SHARE = 0.75


class _Names(NamedTuple):
    """Of a control group's files."""

    limit: str
    used: str
    reclaimable: str  # a line of memory.stat


_NAMES = (
    _Names("memory.max", "memory.current", "inactive_file"),  # version 2
    _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def check_memory(where: str, num_ranks: int, weight_bytes: int, cache_bytes: int, available: int) -> None:
    """`weight_bytes` and `cache_bytes` of each rank, `available` for all of them; `where` begins a
    clause. Raises InvalidConfig.
    """
    if num_ranks * (LEAST_WEIGHT_SHARE * weight_bytes + cache_bytes) > available:
        raise InvalidConfig(
            f"{num_ranks} rank(s) need {human(weight_bytes)} of weights and {human(cache_bytes)} of cache each, "
            f"together {human(num_ranks * (weight_bytes + cache_bytes))}, and {where} has {human(available)} of memory "
            "available; lower max_model_len or kv_cache_memory_bytes, or choose a quantization or a smaller model"
        )


def available_memory(meminfo: Path = MEMINFO, cgroup: Path = CGROUP, own: Path = OWN) -> int:
    """Bytes that new processes may use: the machine's available memory, or the container's or the
    service's if that is less. `own`: names this process' control groups.
    """
    available = _number(meminfo, r"MemAvailable: +(\d+) kB") or 0
    return min([available * 1024, *(limit - used for limit, used in _limits(cgroup, own))])


def total_memory(meminfo: Path = MEMINFO, cgroup: Path = CGROUP, own: Path = OWN) -> int:
    """Likewise, if nothing used any."""
    total = _number(meminfo, r"MemTotal: +(\d+) kB") or 0
    return min([total * 1024, *(limit for limit, _ in _limits(cgroup, own))])


def _limits(cgroup: Path, own: Path) -> Iterator[tuple[int, int]]:
    """Of each group that has a limit, of the process' own and those around it; and the bytes that
    are used and cannot be reclaimed.
    """
    for folder in control_groups("memory", cgroup, own):
        for names in _NAMES:
            if (limit := _number(folder / names.limit, r"(\d+)")) is not None:
                used = _number(folder / names.used, r"(\d+)") or 0
                yield limit, used - (_number(folder / "memory.stat", rf"{names.reclaimable} (\d+)") or 0)


def human(num_bytes: int) -> str:
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"


def _number(path: Path, pattern: str) -> int | None:
    """None if the file has no number."""
    try:
        found = re.search(f"^{pattern}$", path.read_text(encoding="ascii"), re.MULTILINE)
    except FileNotFoundError:
        return None
    return int(found[1]) if found else None
