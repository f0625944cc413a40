"""`squadron serve` as users start it, in a process of its own, to be harmed."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cluster.chaos.report import Fault
from cluster.launch.packages import ROOT
from cluster.sockets import LOOPBACK
from tests.end_to_end.chaos.app import DEMO
from tests.end_to_end.chaos.processes import find, send, title_of
from tests.end_to_end.conftest import free_port


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """`squadron serve`."""

    process: subprocess.Popen[str]
    url: str
    mark: str  # what every process below it has in its environment
    stderr: IO[str]

    def harm(self, victim: str | None) -> Fault:
        """SIGTERM for the command, or SIGKILL for the program of that name below it."""
        if victim is None:
            self.process.send_signal(signal.SIGTERM)
            return Fault(f"SIGTERM squadron serve {self.process.pid}", time.monotonic(), interrupts=False)
        (pid,) = [pid for pid in find("", self.process.pid) if Path(title_of(pid).partition(" ")[0]).name == victim]
        send(pid, signal.SIGKILL)
        return Fault(f"kill -9 {victim} {pid}", time.monotonic(), interrupts=False)

    def folders(self) -> set[Path]:
        """What it keeps on disk."""
        found = set()
        for pid in self.processes():
            with contextlib.suppress(OSError):
                told = b" ".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
                found |= set(re.findall(r"/tmp/squadron-\w+", told.decode(errors="replace")))
        return {Path(folder) for folder in found}

    def processes(self) -> list[int]:
        """All that have the mark."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
        return found


@contextlib.contextmanager
def serving(*options: str, within: Sequence[str] = ()) -> Iterator[ServeCommand]:
    """The demo on four ranks, ready; `within` is a program that runs the command, as `nice`
    does.
    """
    port = free_port()
    mark = f"SQUADRON_CHAOS={os.getpid()}-{port}"
    program = [sys.executable, "-m", "cluster.cli", "serve", str(DEMO), "--port", str(port), "--device", "cpu"]
    with tempfile.NamedTemporaryFile("w", prefix="stderr-") as stderr:
        process = subprocess.Popen(
            [*within, *program, *options, "-tp", "2", "-pp", "2", "--kv-cache-memory-bytes", str(64 << 20)],
            cwd=ROOT,
            env=os.environ | dict([mark.split("=", 1)]),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        command = ServeCommand(process, f"http://{LOOPBACK}:{port}", mark, stderr)
        try:
            assert process.stdout is not None
            assert any(re.match("Ready: ", line) for line in process.stdout), "the server did not start"
            yield command
        finally:
            for pid in [process.pid, *command.processes()]:
                send(pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
