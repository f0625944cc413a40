"""The memory of a server's processes, watched while something is done to it."""

import asyncio
import os

from tests.end_to_end.chaos.processes import ENGINE, GATEWAY, PROXY, descendants, title_of, usage
from tests.end_to_end.chaos.watcher import Watcher

MEMORY_OF = {"gateway": GATEWAY, "proxy": PROXY, "engine": ENGINE}
LOOK_SECONDS = 1.0


class WatchedMemory(Watcher):
    """Anonymous memory in MiB of each kind of process: at the begin, at most, and at the end."""

    def __init__(self) -> None:
        self._seen: list[dict[str, int]] = []

    async def begin(self) -> None:
        self._seen.append(await asyncio.to_thread(_memory))

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._seen.append(await asyncio.to_thread(_memory))

    async def end(self) -> None:
        self._seen.append(await asyncio.to_thread(_memory))

    @property
    def summary(self) -> str:
        first, last = self._seen[0], self._seen[-1]
        return "; ".join(f"{name} {first[name]} {self._most(name)} {last[name]}" for name in MEMORY_OF)

    @property
    def grown(self) -> int:
        """MiB by which all together grew at most, at different times perhaps."""
        return sum(self._most(name) - self._seen[0][name] for name in MEMORY_OF)

    def _most(self, name: str) -> int:
        return max(each[name] for each in self._seen)


def _memory() -> dict[str, int]:
    titles = [(pid, title_of(pid)) for pid in descendants(os.getpid())]
    found = {
        name: [usage(pid) for pid, title in titles if title.startswith(start)] for name, start in MEMORY_OF.items()
    }
    return {name: sum(each.memory_bytes for each in taken if each) >> 20 for name, taken in found.items()}
