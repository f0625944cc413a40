"""What /proc tells of a process of this machine, its end and its number's next owner considered."""

from pathlib import Path

STOPPED_SECONDS = 2.4  # that a process may be stopped by a signal: a pause of two seconds is nothing yet


def is_stopped(pid: int, start_time: int) -> bool:
    """Whether a signal has stopped the process that began then, in ticks since the machine did."""
    try:
        fields = read_stat(pid)
    except OSError:
        return False
    return fields[0] == "T" and int(fields[19]) == start_time


def read_start_time(pid: int) -> int | None:
    """When the process began, in ticks since the machine did; None if there is none."""
    try:
        return int(read_stat(pid)[19])
    except OSError:
        return None


def read_stat(pid: int) -> list[str]:
    """The fields of proc(5)'s stat behind the process' name: state (T: stopped by a signal),
    parent, ...; raises OSError.
    """
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
