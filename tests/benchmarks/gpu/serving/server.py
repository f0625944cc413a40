"""`squadron serve` in processes of its own: started, awaited, ended, and what its processes
logged.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster.sockets import LOOPBACK
from tests.end_to_end.chaos.processes import descendants, send
from tests.end_to_end.conftest import free_port

STOP_SECONDS = 45.0
LAST_LINES = 200  # of each log
CONNECT = "Other Ray jobs connect with "  # environment variables, as the server names them
SUFFIXES = (".log", ".err", ".out")


@dataclass(slots=True)
class Served:
    """A server that is ready."""

    pid: int
    port: int
    start_seconds: float
    said: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def ray(self) -> tuple[str, dict[str, str]]:
        """Its address, and the environment to connect with."""
        (address,) = (found[1] for line in self.said if (found := re.search(r"\(Ray cluster (\S+)\)", line)))
        named = next(line for line in reversed(self.said) if line.startswith(CONNECT))
        return address, dict(each.split("=", 1) for each in named.removeprefix(CONNECT).split())


@contextlib.asynccontextmanager
async def serving(model: Path, options: Sequence[str], limit: float, logs: Path) -> AsyncIterator[Served]:
    """Ready within `limit` seconds; the ends of its logs are below `logs` afterwards, whatever
    happens. Raises ChildProcessError, TimeoutError.
    """
    port = free_port()
    command = [sys.executable, "-m", "cluster.cli", "serve", str(model), "--port", str(port), *options]
    logs.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *command, "--log-dir", str(logs / "all"), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    served = Served(process.pid, port, 0.0)
    reader = asyncio.create_task(_read(process, served))
    try:
        await asyncio.wait_for(_ready(served, reader), limit)
        served.start_seconds = time.monotonic() - began
        yield served
    finally:
        await _stop(process, reader)
        (logs / "said.txt").write_text("\n".join(served.said) + "\n", encoding="utf-8")
        _keep_ends(logs / "all", served.said, logs)


async def _read(process: asyncio.subprocess.Process, served: Served) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        served.said.append(line.decode(errors="replace").rstrip())


async def _ready(served: Served, reader: asyncio.Task[None]) -> None:
    while not any(line.startswith(CONNECT) for line in served.said):
        if reader.done():
            raise ChildProcessError("the server ended before it was ready: " + " | ".join(served.said[-8:]))
        await asyncio.sleep(0.05)


async def _stop(process: asyncio.subprocess.Process, reader: asyncio.Task[None]) -> None:
    """Ends it as an operator would, and what is left of it after that by force."""
    family = descendants(process.pid)
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        for pid in (process.pid, *descendants(process.pid), *family):
            send(pid, signal.SIGKILL)
        await process.wait()
    reader.cancel()


def _keep_ends(copied: Path, said: Sequence[str], folder: Path) -> None:
    """The last lines of each log, of the copy that the server has made, or of Ray's own folder."""
    own = [Path(line.removeprefix("Logs: ")) for line in said if line.startswith("Logs: ")]
    source = next((each for each in (copied, *own) if each.is_dir()), None)
    for path in source.rglob("*") if source is not None else ():
        if path.suffix not in SUFFIXES or path.is_symlink() or not os.path.getsize(path):
            continue
        with path.open(encoding="utf-8", errors="replace") as log:
            lines = deque(log, LAST_LINES)
        kept = folder / "ends" / path.relative_to(source)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text("".join(lines), encoding="utf-8")
