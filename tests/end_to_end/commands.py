"""`squadron serve` as a process of a test's."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.end_to_end.conftest import DEMO
from tests.end_to_end.test_command import ROOT, SQUADRON, wait_until_gone


@dataclass(frozen=True, slots=True)
class Command:
    process: subprocess.Popen[str]
    port: int
    mark: str  # in the environment of all that it starts
    said: list[str]  # its lines until it was ready

    def wait_until_ready(self) -> None:
        """Or ended."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if line.startswith("Ready: "):
                return


@contextlib.contextmanager
def serve(folder: Path, port: int, *options: str, model: str = str(DEMO), **environment: str) -> Iterator[Command]:
    """On CPU; not awaited. Ends it, and waits until nothing of it is left; `folder` is one that no
    other test has.
    """
    mark = f"SQUADRON_TEST={folder}"
    process = subprocess.Popen(
        [*SQUADRON, "serve", model, "--port", str(port), "--device", "cpu", *options],
        cwd=ROOT,
        env=os.environ | dict([mark.split("=", 1)]) | environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        yield Command(process, port, mark, [])
    finally:
        process.terminate()
        process.stdout.read()
        process.wait(timeout=60)
        process.stdout.close()
        wait_until_gone(mark)
