"""What /proc says about a process of this machine, even if it has ended or its id was reused."""

from pathlib import Path

STOPPED_SECONDS = 2.4  # that a process may be stopped: a pause of two seconds is no loss yet


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
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
