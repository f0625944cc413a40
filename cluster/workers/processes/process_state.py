"""What /proc says about a process of this machine, even if it has ended or its id was reused; and
what this process says about itself to others.
"""

import os
from dataclasses import dataclass
from pathlib import Path

STOPPED_SECONDS = 2.4  # that a process may be stopped: a pause of two seconds is no loss yet


@dataclass(frozen=True, slots=True)
class Facts:
    """Which process this is, and where."""

    pid: int
    start_time: int  # in ticks since boot: distinguishes it from a later process of the same id
    machine: str  # equal for processes that can see each other in /proc, and only for those
    node_id: str  # Ray's
    address: str  # of the node


def is_stopped(pid: int, start_time: int) -> bool:
    """Whether a signal has stopped the process with that start time, in ticks since boot."""
    try:
        fields = read_stat(pid)
    except OSError:
        return False
    return fields[0] == "T" and int(fields[19]) == start_time


def read_start_time(pid: int) -> int | None:
    """The process' start time in ticks since boot; None if there is no such process."""
    try:
        return int(read_stat(pid)[19])
    except OSError:
        return None


def read_stat(pid: int) -> list[str]:
    """The fields of proc(5)'s stat after the process' name: state (T: stopped by a signal), parent,
    ...; raises OSError.
    """
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def read_facts(node_id: str, address: str) -> Facts:
    """Of this process."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    start_time = read_start_time(os.getpid())
    assert start_time is not None
    return Facts(os.getpid(), start_time, f"{boot_id} {os.readlink('/proc/self/ns/pid')}", node_id, address)
