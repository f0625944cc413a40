"""Processes below this one, by what they call themselves; signals go to these alone."""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cluster.ingress.choice import DEFAULT_WISH
from cluster.ingress.haproxy import haproxy_program
from cluster.workers.processes.process_state import read_stat

WORKER = "ray::WorkerActor"
SERVING = f"{WORKER}.run"  # one of a rank: Ray adds what an actor is at, and a spare is at nothing
ENGINE = "ray::ServeReplica:squadron:EngineDeployment"
CONTROLLER = "ray::ServeController"
GATEWAY = "ray::ServeReplica:squadron:GatewayDeployment"
PROXY = "ray::ProxyActor" if DEFAULT_WISH == "proxy" else haproxy_program()  # it listens


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process takes of the machine."""

    memory_bytes: int  # anonymous and resident: pages of files come and go with the system's cache, and are not its own
    num_descriptors: int
    num_threads: int


def descendants(root: int) -> list[int]:
    """Every process below `root`, which is not one of them."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = int(read_stat(int(entry.name))[1])
    below: list[int] = []
    level = [root]
    while level:
        level = [pid for pid, parent in parents.items() if parent in level]
        below += level
    return below


def find(title: str, root: int | None = None) -> list[int]:
    """Processes below `root` (or this one) whose command line begins so, and which have not
    ended.
    """
    return [pid for pid in descendants(root or os.getpid()) if title_of(pid).startswith(title) and is_alive(pid)]


def title_of(pid: int) -> str:
    """The command line; nothing if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def short_title(title: str) -> str:
    """What a command line runs: the file's name, or the script's that an interpreter runs."""
    program, *words = [Path(word).name for word in title.split()] or [""]
    scripts = [word for word in words if word.endswith(".py") and program.startswith("python")]
    return scripts[0] if scripts else program


def is_alive(pid: int) -> bool:
    try:
        return read_stat(pid)[0] not in "ZX"
    except OSError:
        return False


def send(pid: int, number: signal.Signals) -> bool:
    """Whether the process was there to get the signal."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def renice(pid: int, nice: int) -> None:
    """All its threads."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(task.name), nice)


def usage(pid: int) -> Usage | None:
    """None if the process has ended."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()
        num_descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        num_threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    except OSError:
        return None
    return Usage((int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE"), num_descriptors, num_threads)


class SharedMemory:
    """What this process and those below it have mapped of /dev/shm, for as long as it lies there,
    also when they have ended. Others of the machine have theirs.
    """

    def __init__(self) -> None:
        self._own: set[Path] = set()

    def look(self) -> list[str]:
        """The names; whatever is mapped between two looks only is not known."""
        for pid in (os.getpid(), *descendants(os.getpid())):
            with suppress(OSError):
                lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
                paths = [line.partition("/dev/shm/")[2] for line in lines]
                self._own |= {Path("/dev/shm", path) for path in paths if path}
        self._own = {path for path in self._own if path.exists()}
        return sorted(path.name for path in self._own)
