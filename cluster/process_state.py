"""What /proc tells of a process of this machine, its end and its number's next owner considered."""

from pathlib import Path


def is_stopped(pid: int, start_time: int) -> bool:
    """Whether a signal has stopped the process that began then, in ticks since the machine did."""
    fields = _read(pid)
    return fields is not None and fields[0] == "T" and int(fields[19]) == start_time


def read_start_time(pid: int | str) -> int | None:
    """When the process began, in ticks since the machine did; None if there is none. "self" is this one."""
    fields = _read(pid)
    return None if fields is None else int(fields[19])


def _read(pid: int | str) -> list[str] | None:
    """The fields of proc(5)'s stat behind the process' name: its state (T: stopped by a signal), and so on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
