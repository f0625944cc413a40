"""The whole server on a GPU: Ray, Serve, HTTP and an engine on the device: `python -m
tests.benchmarks.gpu.serving`.

Answers, the same bits alone, together and in other chunks, killed workers and engines, sleep, and
tokens a second by HTTP beside those of the engine alone. A step that fails is reported, and the
next one begins. The ends of all logs are in a `.tar.gz` beside the figures. `--device cpu --quick`
rehearses it; figures of a rehearsal mean nothing.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from tests.benchmarks.gpu.serving.load import Figures
from tests.benchmarks.gpu.serving.server import serving
from tests.benchmarks.gpu.serving.stages import START_SECONDS, STEP_SECONDS, Stage, stages
from tests.benchmarks.gpu.serving.steps import Run, Wrong
from tests.benchmarks.gpu.table import line

MINUTES = 8.0
# Where it ends at once: a process that has asked torch for a device holds some of its memory.
ABOUT = """
import json, sys, torch
from tests.benchmarks.gpu.__main__ import environment
print(json.dumps(environment(torch.device(sys.argv[1]), None)))
"""
LEAST_SECONDS = 15.0  # a stage that has less left is not begun
SHOWN = 2000  # characters of an error
MOST_CLIENTS = 4


class Book:
    """The report, written after each step."""

    def __init__(self, output: Path, minutes: float, **about: Any) -> None:
        self._output = output
        self._deadline = time.monotonic() + 60 * minutes
        self.report: dict[str, Any] = about | {"steps": []}

    @property
    def left(self) -> float:
        """Seconds."""
        return self._deadline - time.monotonic()

    @property
    def num_failed(self) -> int:
        return sum("failed" in step for step in self.report["steps"])

    async def step(self, name: str, work: Awaitable[Figures], limit: float = STEP_SECONDS) -> None:
        began = time.monotonic()
        entry: dict[str, Any] = {"step": name}
        try:
            entry |= await asyncio.wait_for(work, max(1.0, min(limit, self.left)))
        except Exception as error:  # whatever it is, the next step is to run
            self.note(entry | {"seconds": time.monotonic() - began}, error)
        else:
            self.note(entry | {"seconds": time.monotonic() - began})

    def note(self, entry: dict[str, Any], error: Exception | None = None) -> None:
        if error is not None:
            kind = "" if isinstance(error, Wrong) else f"{type(error).__name__}: "
            entry["failed"] = f"{kind}{error}"[:SHOWN]
        self.report["steps"].append(entry)
        self._output.write_text(json.dumps(self.report, indent=1) + "\n", encoding="utf-8")
        print(f"FAILED {entry['step']}: {entry['failed']}" if error else f"ok     {line(entry)}", flush=True)


async def run_stage(stage: Stage, run: Run, book: Book, logs: Path) -> None:
    for name, alone in stage.before:
        await book.step(f"{stage.name}: {name}", alone(run), START_SECONDS)
    if book.left < LEAST_SECONDS:
        book.note({"step": f"{stage.name}: start"}, Wrong("no time was left"))
        return
    began = time.monotonic()
    try:
        async with serving(stage.model, stage.options, min(START_SECONDS, book.left), logs / stage.name) as served:
            book.note({"step": f"{stage.name}: start", "ready_s": served.start_seconds})
            for name, step in stage.steps:
                await book.step(f"{stage.name}: {name}", step(run, served))
    except Exception as error:  # the server did not start, or could not be ended
        book.note({"step": f"{stage.name}: server", "seconds": time.monotonic() - began}, error)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu.serving")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: a rehearsal")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all of it")
    parser.add_argument("--stages", nargs="+", default=[""], help="how the names of those to be run begin")
    parser.add_argument("--output", type=Path, default=Path("bench-serving.json"), help="a file for the figures")
    options = parser.parse_args()
    if options.device == "cpu" and not options.quick:
        parser.error("--device cpu is for rehearsals: give --quick too")
    return options


async def run_all(options: argparse.Namespace, folder: Path) -> int:
    clients = max(1, min(MOST_CLIENTS, len(os.sched_getaffinity(0)) // 4))
    run = Run(options.device, options.quick, clients)
    told = subprocess.run([sys.executable, "-c", ABOUT, options.device], stdout=subprocess.PIPE).stdout
    about = json.loads(told or "{}") | {
        "command": " ".join(("python -m tests.benchmarks.gpu.serving", *sys.argv[1:])),
        "cores": len(os.sched_getaffinity(0)),
    }
    book = Book(options.output, options.minutes, environment=about, quick=options.quick)
    wanted = tuple(options.stages)
    for stage in stages(options.device, options.quick, folder):
        if stage.name.startswith(wanted):
            await run_stage(stage, run, book, folder / "logs")
            keep_logs(folder, options.output.with_suffix(".tar.gz"))
    return book.num_failed


def keep_logs(folder: Path, target: Path) -> None:
    with tarfile.open(target, "w:gz") as logs:
        for path in folder.glob("logs/*/*"):
            if path.name != "all":  # whole, and so too much
                logs.add(path, path.relative_to(folder))


def main() -> int:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="squadron-serving-") as folder:
        num_failed = asyncio.run(run_all(options, Path(folder)))
    print(f"{num_failed} step(s) failed")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
