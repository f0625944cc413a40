"""Whether the weights and the cache of a configuration fit into a machine's memory, where the CPU
computes.
"""

import re
from pathlib import Path

from engine.errors import InvalidConfig

CGROUP = Path("/sys/fs/cgroup")
# On CPU, bfloat16 weights may take only twelve bits each: a configuration is rejected only if it
# certainly does not fit.
LEAST_WEIGHT_SHARE = 0.75


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


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = CGROUP) -> int:
    """Bytes that new processes may use: the machine's available memory, or the container's if that
    is less.
    """
    available = _number(meminfo, r"MemAvailable: +(\d+) kB") or 0
    limit = _number(cgroup / "memory.max", r"(\d+)")
    if limit is None:
        return available * 1024
    used = _number(cgroup / "memory.current", r"(\d+)") or 0
    reclaimable = _number(cgroup / "memory.stat", r"inactive_file (\d+)") or 0
    return min(available * 1024, limit - used + reclaimable)


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
