"""Processor time of a server's processes, by what they do."""

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

from cluster.workers.processes.process_state import read_stat

TICK = 1 / os.sysconf("SC_CLK_TCK")  # seconds
# By a part of the command line, the first that is found; the rest counts as "other".
KINDS = {
    "GatewayDeployment": "gateway",
    "EngineDeployment": "engine",
    "RankProcess": "engine",
    "ProxyActor": "ingress",
    "haproxy": "ingress",
    "VLLM::EngineCore": "engine",
    "vllm": "gateway",
}


def cpu_seconds(server: int) -> Counter[str]:
    """Of the process and all that descend from it, so far, by kind."""
    found: Counter[str] = Counter()
    for pid, kind in kinds(server).items():
        with suppress(OSError):  # it has ended
            fields = read_stat(pid)
            found[kind] += (int(fields[11]) + int(fields[12])) * TICK  # user and system
    return found


def kinds(server: int) -> dict[int, str]:
    """The process and all that descend from it, by number."""
    found = {}
    for pid in _family(server):
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            found[pid] = next((kind for part, kind in KINDS.items() if part in command), "other")
    return found


def _family(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                children.setdefault(int(read_stat(int(folder.name))[1]), []).append(int(folder.name))
            except OSError:
                continue
    family = [root]
    for pid in family:
        family += children.get(pid, [])
    return family
