"""What the processes of a scenario take of the processors, and how late the client itself is: it
shares the machine with the server.
"""

import asyncio
import os
import time
from collections import Counter

from cluster.chaos.report import percentile
from cluster.workers.processes.process_state import read_stat
from tests.end_to_end.chaos.processes import CONTROLLER, ENGINE, GATEWAY, PROXY, WORKER, descendants, title_of
from tests.end_to_end.chaos.watcher import Watcher

TICK = 1 / os.sysconf("SC_CLK_TCK")  # seconds
NAMES = {PROXY: "ingress", GATEWAY: "gateway", ENGINE: "engine", WORKER: "workers", CONTROLLER: "controller"}
LOOK_SECONDS = 0.02


class Effort(Watcher):
    """Between the context's begin and its end."""

    def __init__(self) -> None:
        self._lags: list[float] = []  # seconds

    async def begin(self) -> None:
        self._begin = time.monotonic()
        self._before = await asyncio.to_thread(_seconds)

    async def watch(self) -> None:
        while True:
            due = time.monotonic() + LOOK_SECONDS
            await asyncio.sleep(LOOK_SECONDS)
            self._lags.append(time.monotonic() - due)

    async def end(self) -> None:
        self._after = await asyncio.to_thread(_seconds)
        self._end = time.monotonic()

    @property
    def shares(self) -> str:
        """Of a processor each, in percent."""
        seconds = self._end - self._begin
        names = ("client", *NAMES.values(), "other")
        return ", ".join(f"{name} {(self._after[name] - self._before[name]) / seconds:.0%}" for name in names)

    @property
    def lag(self) -> str:
        """How late the client's event loop is."""
        lags = sorted(self._lags)
        return f"p50 {percentile(lags, 0.5) * 1000:.0f}, p99 {percentile(lags, 0.99) * 1000:.0f}"


def _seconds() -> Counter[str]:
    """Of this process and those below it, by kind; those that have ended count no more."""
    found = Counter({"client": time.process_time()})
    for pid in descendants(os.getpid()):
        try:
            fields, title = read_stat(pid), title_of(pid)
        except OSError:
            continue  # it has ended
        name = next((name for start, name in NAMES.items() if title.startswith(start)), "other")
        found[name] += (int(fields[11]) + int(fields[12])) * TICK  # user and system
    return found
