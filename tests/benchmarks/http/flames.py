"""Flame graphs of a server's processes: where each spends its time, by py-spy (`pip install
py-spy`), which looks at their stacks from outside and does not stop them.
"""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.benchmarks.http.processes import kinds

WANTED = ("gateway", "engine")
RATE = 200  # looks a second


def recorder() -> str:
    """The program's path. Raises FileNotFoundError."""
    found = shutil.which("py-spy", path=Path(sys.executable).parent) or shutil.which("py-spy")
    if found is None:
        raise FileNotFoundError("flame graphs need py-spy: pip install py-spy")
    return found


@contextmanager
def recorded(server: int, folder: Path) -> Iterator[None]:
    """Within, the server's gateway and engine are watched: `folder`/gateway.svg and engine.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for pid, kind in kinds(server).items():
            if kind in WANTED:
                stack.enter_context(_recorded(pid, folder / f"{kind}.svg"))
        yield


@contextmanager
def _recorded(pid: int, path: Path) -> Iterator[None]:
    command = [recorder(), "record", "--nonblocking", "--rate", str(RATE), "--output", str(path), "--pid", str(pid)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)  # then it writes
