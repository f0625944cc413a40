"""Checks that this machine has the GPUs and the memory that a configuration needs, before anything
starts.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from ray._private.accelerators import get_accelerator_manager_for_resource

from cluster.checkpoint.plan import Plan, human
from engine.config import EngineConfig
from engine.errors import InvalidConfig

CGROUP = Path("/sys/fs/cgroup")
# On CPU, bfloat16 weights may take only twelve bits each: a configuration is rejected only if it
# certainly does not fit.
LEAST_WEIGHT_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class Need:
    """Memory of all ranks of all engines on this machine's CPU, in bytes; `__str__` is a line of
    `squadron plan`.
    """

    num_ranks: int
    needed: int  # for weights and cache
    available: int

    def __str__(self) -> str:
        return (
            f"memory here           {human(self.needed)} for {self.num_ranks} rank(s), {human(self.available)} "
            "available"
        )


def check_machine(config: EngineConfig, plan: Plan, num_engines: int = 1) -> Need | None:
    """The memory needed; None if GPUs compute. Raises InvalidConfig if this machine does not have
    what the configuration needs.
    """
    wanted, there = num_engines * config.world_size, num_gpus()
    if config.device == "cuda" and there < wanted:
        raise InvalidConfig(f"device=cuda takes {wanted} GPU(s), and this machine has {there}; device=cpu would work")
    if config.quantization == "fp8" and config.ops_backend != "reference" and there == 0:
        raise InvalidConfig("quantization=fp8 is not computed on CPU; int8 or int4 would work")
    if config.device == "cuda" or (config.device == "auto" and there >= wanted):
        return None
    need = Need(wanted, wanted * (plan.weight_bytes + plan.cache_bytes), available_memory())
    if wanted * (LEAST_WEIGHT_SHARE * plan.weight_bytes + plan.cache_bytes) > need.available:
        raise InvalidConfig(
            f"{wanted} rank(s) take {human(plan.weight_bytes)} of weights and {human(plan.cache_bytes)} of cache each, "
            f"together {human(need.needed)}, and this machine has {human(need.available)} of memory available; "
            "lower max_model_len or kv_cache_memory_bytes, or choose a quantization or a smaller model"
        )
    return need


def num_gpus() -> int:
    """The GPUs that Ray would find here, without those that CUDA_VISIBLE_DEVICES hides."""
    manager = get_accelerator_manager_for_resource("GPU")
    visible = manager.get_current_process_visible_accelerator_ids()
    found: int = manager.get_current_node_num_accelerators()
    return found if visible is None else min(found, len(visible))


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


def _number(path: Path, pattern: str) -> int | None:
    """None if the file has no number."""
    try:
        found = re.search(f"^{pattern}$", path.read_text(encoding="ascii"), re.MULTILINE)
    except FileNotFoundError:
        return None
    return int(found[1]) if found else None
