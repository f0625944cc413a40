"""A part of the benchmark in a process of its own, with a time limit; begun anew behind what has
made the device fail.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.benchmarks.gpu.parts import DEVICE_FAILED

NUM_STARTS = 4  # a device that fails more often is not to be measured


def run_part(
    name: str, device: str, quick: bool, seconds: float, show: Callable[[dict[str, Any]], None]
) -> tuple[list[dict[str, Any]], str | None]:
    """What was measured, each thing shown as it comes, and why that is not all."""
    deadline = time.monotonic() + seconds
    figures: list[dict[str, Any]] = []
    for _ in range(NUM_STARTS):
        command = [sys.executable, "-m", "tests.benchmarks.gpu.parts", name, "--device", device]
        command += ["--skip", str(len(figures)), *(["--quick"] if quick else [])]
        status, said = _run(command, deadline - time.monotonic(), figures, show)
        if status is None:
            return figures, f"took longer than {seconds:g} s"
        if status != DEVICE_FAILED:
            return figures, f"ended with {status}: {said}" if status else None
    return figures, f"the device failed {NUM_STARTS} times"


def _run(
    command: list[str], seconds: float, figures: list[dict[str, Any]], show: Callable[[dict[str, Any]], None]
) -> tuple[int | None, str]:
    """Exit status, None if it was ended for taking too long, and the last line of its standard
    error.
    """
    errors: list[str] = []
    ended = threading.Event()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:

        def end() -> None:
            ended.set()
            os.killpg(process.pid, signal.SIGKILL)  # and the ranks that it has started

        timer = threading.Timer(max(seconds, 0.0), end)
        reader = threading.Thread(target=lambda: errors.extend(process.stderr or ()))
        timer.start()
        reader.start()
        for text in process.stdout or ():
            if text.startswith("{"):
                figures.append(json.loads(text))
                show(figures[-1])
        status = process.wait()
        timer.cancel()
        reader.join()
    said = next((line.strip() for line in reversed(errors) if line.strip()), "")
    return (None if ended.is_set() else status), said
