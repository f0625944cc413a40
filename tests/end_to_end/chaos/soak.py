"""Hours of T1 and T16 together (T21): processes that live as long as the application must not grow."""

import asyncio
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from cluster.chaos.client import ChaosClient
from cluster.chaos.report import Fault, Report
from cluster.chaos.requests import make_requests
from tests.end_to_end.chaos.app import FOUR_RANKS, app_args, running
from tests.end_to_end.chaos.drops import NUM_DIFFERENT, drop_some
from tests.end_to_end.chaos.options import Options
from tests.end_to_end.chaos.processes import WORKER, Usage, descendants, shared_memory, title_of, usage
from tests.end_to_end.chaos.run import Deliver, Load, disturbed, kill_every

SAMPLE_SECONDS = 5.0
WARM_UP = 0.3  # share of the time that slopes are not taken from
MIB_PER_HOUR = 1.0
SOFT_SECONDS = 600.0  # shorter runs show slopes, but are not judged by them


@dataclass(slots=True)
class _Samples:
    """Of each process, by pid: seconds and what it took then."""

    of_process: dict[int, list[tuple[float, Usage]]] = field(default_factory=dict)
    num_shared: list[int] = field(default_factory=list)  # files in /dev/shm
    titles: dict[int, str] = field(default_factory=dict)


def soak(options: Options) -> Report:
    """T21: workers killed every 20 s and clients dropped, for 30 minutes or --seconds; memory, descriptors, threads stay."""
    seconds = options.seconds or (60.0 if options.quick else 1800.0)
    interval = options.interval or 20.0
    num_faults = options.faults or max(1, int(seconds / interval) - 1)
    load = Load(options.pick(options.streams, 100, 20), concurrency=16, seed=options.seed)
    samples = _Samples()
    with running(app_args(FOUR_RANKS, recovers=options.recovers)) as app:
        deliver = _mixed(app.url, seconds, interval, num_faults, options.seed, samples)
        report = asyncio.run(disturbed("T21", app.url, load, num_faults=num_faults, deliver=deliver))
    _judge(report, samples, seconds)
    return report


def _mixed(url: str, seconds: float, interval: float, num_faults: int, seed: int, samples: _Samples) -> Deliver:
    kill = kill_every(interval, WORKER, num_faults, seed=seed)

    async def deliver(faults: list[Fault]) -> None:
        end = time.monotonic() + seconds
        async with ChaosClient(url) as client, asyncio.TaskGroup() as tasks:
            tasks.create_task(kill(faults))
            tasks.create_task(_sample(samples, end))
            requests = make_requests(NUM_DIFFERENT, model=await client.first_model(), max_tokens=100, seed=seed + 1)
            number = 0
            while time.monotonic() < end:
                number += 1
                await drop_some(client, requests, 16, seed + number)

    return deliver


async def _sample(samples: _Samples, end: float) -> None:
    while time.monotonic() < end:
        now = time.monotonic()
        for pid in descendants(os.getpid()):
            taken = usage(pid)
            if taken is not None:
                samples.of_process.setdefault(pid, []).append((now, taken))
                samples.titles[pid] = Path(title_of(pid).split(" ")[0]).name[-60:]
        samples.num_shared.append(len(shared_memory()))
        await asyncio.sleep(SAMPLE_SECONDS)


def _judge(report: Report, samples: _Samples, seconds: float) -> None:
    """Slopes of the processes that were there all the time, after the warm-up."""
    complaints = []
    num_samples = len(samples.num_shared)
    for pid, all_taken in samples.of_process.items():
        if len(all_taken) < num_samples:
            continue
        taken = all_taken[int(WARM_UP * num_samples) :]
        mib = slope([(at, each.memory_bytes / (1 << 20)) for at, each in taken]) * 3600
        descriptors = taken[-1][1].num_descriptors - taken[0][1].num_descriptors
        threads = taken[-1][1].num_threads - taken[0][1].num_threads
        report.figures[f"{samples.titles[pid]} {pid}"] = (
            f"{mib:+.1f} MiB/h, {descriptors:+} descriptors, {threads:+} threads"
        )
        if mib > MIB_PER_HOUR:
            complaints.append(f"{samples.titles[pid]} {pid} grows by {mib:.1f} MiB an hour")
    report.figures["files in /dev/shm"] = f"{samples.num_shared[0]} at first, {samples.num_shared[-1]} at last"
    if samples.num_shared[-1] > max(samples.num_shared[: max(1, num_samples // 2)]):
        complaints.append("files pile up in /dev/shm")
    if seconds >= SOFT_SECONDS:
        report.unmet += complaints


def slope(points: list[tuple[float, float]]) -> float:
    """Of the line with the least squares; 0 for fewer than two points."""
    if len(points) < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
