"""Processes that stop without dying (T6), and processes that are only slow (T8)."""

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from cluster.chaos.report import Fault, Report
from tests.end_to_end.chaos.app import FOUR_RANKS, App, app_args, running
from tests.end_to_end.chaos.options import Options
from tests.end_to_end.chaos.processes import ENGINE, SERVING, WORKER, find, is_alive, renice, send
from tests.end_to_end.chaos.run import POLL_SECONDS, Deliver, Load, disturbed, some_process

THAW_SECONDS = 60.0  # after which a process that nobody has missed is ended by the harness
PAUSE_SECONDS = 2.0
BURNER = "while True: pass"


def freeze_worker(options: Options) -> Report:
    """T6: SIGSTOP for a worker of TP=2 × PP=2; noticed in 3 s, streams go on in 6."""
    return _freeze("T6-worker", SERVING, app_args(FOUR_RANKS, recovers=options.recovers), options)


def freeze_engine(options: Options) -> Report:
    """T6: SIGSTOP for one of two engine replicas; streams go on in 6 s."""
    return _freeze("T6-engine", ENGINE, app_args({}, recovers=options.recovers, num_engines=2), options)


def be_slow(options: Options) -> Report:
    """T8: 10 minutes with a worker at nice 19, a CPU burner and pauses of 2 s: nothing may be taken
    for dead.
    """
    seconds = options.seconds or (40.0 if options.quick else 600.0)
    num_faults = options.pick(options.faults, 10, 1)
    load = Load(options.pick(options.streams, 100, 20), concurrency=16, seed=options.seed)
    with running(app_args(FOUR_RANKS, recovers=options.recovers)) as app:
        before = set(find(WORKER))
        deliver = _pause_every(seconds / (num_faults + 1), num_faults, options.seed)
        report = asyncio.run(disturbed("T8", app.url, load, num_faults=num_faults, deliver=deliver))
        ended = before - set(find(WORKER))
        report.figures["recoveries"] = num_recoveries(app)
    if ended or report.figures["recoveries"]:
        report.unmet.append(f"workers that were only slow were taken for dead: {sorted(ended)}")
    return report


def num_recoveries(app: App) -> int:
    return sum(stats["num_recoveries"] for stats in app.stats())


def _freeze(name: str, title: str, args: dict[str, object], options: Options) -> Report:
    num_faults = options.pick(options.faults, 3, 1)
    load = Load(options.pick(options.streams, 60, 20), concurrency=32, seed=options.seed)
    noticed: list[float] = []
    with running(args) as app:
        deliver = _freeze_every(options.interval or 5.0, title, num_faults, options.seed, noticed)
        report = asyncio.run(disturbed(name, app.url, load, num_faults=num_faults, deliver=deliver))
    report.figures["ended after, s"] = ", ".join(f"{seconds:.2f}" for seconds in noticed)
    if len(noticed) < num_faults:
        report.unmet.append(f"{num_faults - len(noticed)} frozen processes were still there after {THAW_SECONDS:.0f} s")
    return report


def _freeze_every(seconds: float, title: str, num: int, seed: int, noticed: list[float]) -> Deliver:
    """SIGSTOP, so many times; how long each process stayed is added to `noticed`, if the
    application ended it.
    """
    generator = random.Random(seed)

    async def deliver(faults: list[Fault]) -> None:
        for _ in range(num):
            await asyncio.sleep(seconds)
            pid = await some_process(title, generator)
            if pid is None:
                return
            at = time.monotonic()
            send(pid, signal.SIGSTOP)
            faults.append(Fault(f"SIGSTOP {title} {pid}", at))
            while is_alive(pid) and time.monotonic() < at + THAW_SECONDS:
                await asyncio.sleep(POLL_SECONDS)
            if is_alive(pid):
                send(pid, signal.SIGKILL)
            else:
                noticed.append(time.monotonic() - at)

    return deliver


def _pause_every(seconds: float, num: int, seed: int) -> Deliver:
    """One worker at nice 19 beside a burner on each core; every so often a worker is paused."""
    generator = random.Random(seed)

    async def deliver(faults: list[Fault]) -> None:
        workers = sorted(find(SERVING))
        renice(workers[0], 19)
        with _burning():
            for _ in range(num):
                await asyncio.sleep(seconds)
                pid = generator.choice(workers)
                at = time.monotonic()
                if not send(pid, signal.SIGSTOP):
                    return
                await asyncio.sleep(PAUSE_SECONDS)
                send(pid, signal.SIGCONT)
                faults.append(Fault(f"SIGSTOP for {PAUSE_SECONDS:.0f} s {WORKER} {pid}", at))
            await asyncio.sleep(seconds)

    return deliver


@contextlib.contextmanager
def _burning() -> Iterator[None]:
    burner = subprocess.Popen([sys.executable, "-c", BURNER])
    try:
        yield
    finally:
        burner.kill()
        burner.wait()
