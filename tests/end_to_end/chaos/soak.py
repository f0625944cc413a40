"""Hours of T1 and T16 together (T21): processes that live as long as the application must not
grow.
"""

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from cluster.chaos.client import ChaosClient
from cluster.chaos.report import Fault, Report
from cluster.chaos.requests import make_requests
from cluster.gateway.requests.history import NUM_REQUESTS_REMEMBERED
from engine.records.recorder import NUM_FINISHED_KEPT
from engine.records.timeline import NUM_STEPS_KEPT
from tests.end_to_end.chaos.app import FOUR_RANKS, App, app_args, injected, running
from tests.end_to_end.chaos.drops import CONCURRENCY, NUM_DIFFERENT, drop_some
from tests.end_to_end.chaos.measured.sitecustomize import FOLDER, REST, SECONDS
from tests.end_to_end.chaos.options import Options
from tests.end_to_end.chaos.processes import (
    ENGINE,
    GATEWAY,
    WORKER,
    SharedMemory,
    Usage,
    descendants,
    find,
    short_title,
    title_of,
    usage,
)
from tests.end_to_end.chaos.run import Deliver, Load, disturbed, kill_every

SAMPLE_SECONDS = 5.0
NUM_ROUNDS = 6
NUM_WARM_UP = 2  # of them, which are not judged
REST_SECONDS = 4 * SECONDS  # without requests, until all is told that is left of them
SOFT_SECONDS = 100.0  # shorter rounds show slopes, but are not judged by them
MEASURED = Path(__file__).parent / "measured"
OURS = (ENGINE, GATEWAY, WORKER)  # the others are Ray's: shown, since we choose what they run under, but not judged
MIB = 1 << 20
MIB_PER_HOUR = 1.0  # more in use
MORE_RESIDENT = 4.0  # MiB: what is resident at the least; glibc keeps some of what is freed, and at times gives it back
MORE_DESCRIPTORS = 10  # as many more sockets may happen to be open
MORE_THREADS = 5  # pools grow when they are wanted


@dataclass(frozen=True, slots=True)
class Rest:
    """A process between two rounds, while nobody asks for anything."""

    at: float  # seconds
    bytes_in_use: int


@dataclass(slots=True)
class _Samples:
    """Of each process, by pid, in the rounds that are judged; and the rests before, between and
    after them.
    """

    folder: Path  # where processes tell
    of_process: dict[int, list[Usage]] = field(default_factory=dict)
    num_shared: list[int] = field(default_factory=list)  # files in /dev/shm
    titles: dict[int, str] = field(default_factory=dict)
    rests: dict[int, list[Rest]] = field(default_factory=dict)

    def begin(self) -> None:
        self.of_process, self.num_shared = {}, []

    def rest(self) -> None:
        (self.folder / REST).touch()
        time.sleep(REST_SECONDS)
        (self.folder / REST).unlink()
        for path in self.folder.iterdir():
            if path.name.isdigit():
                self.rests.setdefault(int(path.name), []).append(Rest(time.monotonic(), int(path.read_text())))


def soak(options: Options) -> Report:
    """T21: workers (and spares) killed every minute, clients dropped, for 30 minutes or --seconds;
    what processes take stays.

    In rounds, the first ones to warm up. What is in use is told between them, while nothing runs:
    requests in flight have megabytes, more at one time than at another. Ray keeps some 8 KB of
    every actor that ever was in the process that made it, which is the engine's: with a kill every
    20 s that alone would be 1.4 MiB an hour.
    """
    seconds = (options.seconds or (60.0 if options.quick else 1800.0)) / NUM_ROUNDS
    is_judged = seconds >= SOFT_SECONDS
    interval = options.interval or (60.0 if is_judged else seconds / 2)
    num_faults = max(1, (options.faults or int(seconds * NUM_ROUNDS / interval)) // NUM_ROUNDS)
    load = Load(options.pick(options.streams, 100, 20), concurrency=16, seed=options.seed)
    reports: list[Report] = []
    with tempfile.TemporaryDirectory(prefix="squadron-soak-") as folder, _telling(folder):
        samples = _Samples(Path(folder))
        with running(app_args(FOUR_RANKS, recovers=options.recovers)) as app:
            # The oldest worker lives through it all, to be judged.
            spared = frozenset(find(WORKER)[:1])
            if is_judged:
                asyncio.run(_send(app.url, NUM_REQUESTS_REMEMBERED, max_tokens=2))
            for number in range(NUM_ROUNDS):
                if number == NUM_WARM_UP:
                    samples.begin()
                kill = kill_every(interval, WORKER, num_faults, seed=options.seed + number, spared=spared)
                deliver = _mixed(app.url, seconds, kill, options.seed, samples)
                reports.append(asyncio.run(disturbed("T21", app.url, load, num_faults=num_faults, deliver=deliver)))
                if not reports[-1].has_passed:
                    return reports[-1]
                if number + 1 >= NUM_WARM_UP:
                    if is_judged:
                        settle(app)
                    samples.rest()
    report = _joined(reports)
    complaints = _judge(report, samples)
    if is_judged:
        report.unmet += complaints
    return report


def _joined(reports: Sequence[Report]) -> Report:
    """Of all rounds, whose streams are of the same requests."""
    first = reports[0]
    faults = [fault for report in reports for fault in report.faults]
    streams = [stream for report in reports for stream in report.streams]
    return Report(first.name, len(reports) * first.num_faults_named, faults, streams, first.expected)


@contextlib.contextmanager
def _telling(folder: str) -> Iterator[None]:
    """Processes that start meanwhile tell there what they have in use."""
    os.environ[FOLDER] = folder
    try:
        with injected(MEASURED):
            yield
    finally:
        del os.environ[FOLDER]


def _mixed(url: str, seconds: float, kill: Deliver, seed: int, samples: _Samples) -> Deliver:
    async def deliver(faults: list[Fault]) -> None:
        async with ChaosClient(url) as client, asyncio.TaskGroup() as tasks:
            end = time.monotonic() + seconds
            tasks.create_task(kill(faults))
            tasks.create_task(_sample(samples, end))
            requests = make_requests(NUM_DIFFERENT, model=await client.first_model(), max_tokens=100, seed=seed + 1)
            number = 0
            while time.monotonic() < end:
                number += 1
                await drop_some(client, requests, 16, seed + number)

    return deliver


def settle(app: App) -> None:
    """Undisturbed requests until they are all that the engine remembers: its records of steps with
    faults are other ones.
    """
    num_steps = app.stats()[0]["num_steps"]
    asyncio.run(_send(app.url, NUM_FINISHED_KEPT, max_tokens=16))
    while app.stats()[0]["num_steps"] < num_steps + NUM_STEPS_KEPT:
        asyncio.run(_send(app.url, NUM_DIFFERENT, max_tokens=100))


async def _send(url: str, num: int, *, max_tokens: int) -> None:
    async with ChaosClient(url) as client:
        requests = make_requests(num, model=await client.first_model(), max_tokens=max_tokens)
        await client.send_all(requests, concurrency=CONCURRENCY, streams=[])


async def _sample(samples: _Samples, end: float) -> None:
    shared = SharedMemory()
    while time.monotonic() < end:
        for pid in descendants(os.getpid()):
            taken = usage(pid)
            if taken is not None:
                samples.of_process.setdefault(pid, []).append(taken)
                samples.titles[pid] = short_title(title_of(pid))
        samples.num_shared.append(len(shared.look()))
        await asyncio.sleep(SAMPLE_SECONDS)


def _judge(report: Report, samples: _Samples) -> list[str]:
    """Show how the processes that were there all the time grew; complaints about ours, and
    /dev/shm.
    """
    num_samples = len(samples.num_shared)
    lasting = [pid for pid, taken in samples.of_process.items() if len(taken) == num_samples]
    complaints = []
    for pid in sorted(lasting, key=lambda pid: not samples.titles[pid].startswith(OURS)):
        title = samples.titles[pid]
        grown = Growth.of(samples.of_process[pid], samples.rests.get(pid, []))
        is_ours = title.startswith(OURS)
        report.figures[f"{'' if is_ours else 'of Ray: '}{title} {pid}"] = str(grown)
        complaints += [f"{title} {pid} grows by {what}" for what in grown.complaints() if is_ours]
    for title in OURS:
        if not any(samples.titles[pid].startswith(title) for pid in lasting):
            complaints.append(f"no {title} has lived through it")
    report.figures["files in /dev/shm"] = f"{samples.num_shared[0]} at first, {samples.num_shared[-1]} at last"
    if samples.num_shared[-1] > max(samples.num_shared[: max(1, num_samples // 2)]):
        complaints.append("files pile up in /dev/shm")
    return complaints


@dataclass(frozen=True, slots=True)
class Growth:
    """Of one process."""

    resident: float  # MiB, at last
    more_resident: float  # MiB
    more_in_use: list[float]  # MiB, from each rest to the next
    in_use_an_hour: float | None  # MiB, the median: a table that doubles once is no slope
    more_descriptors: float
    more_threads: float

    @classmethod
    def of(cls, taken: list[Usage], rests: list[Rest]) -> "Growth":
        resident = [each.memory_bytes / MIB for each in taken]
        return cls(
            resident[-1],
            rise(resident, min),
            [(after.bytes_in_use - before.bytes_in_use) / MIB for before, after in pairwise(rests)],
            median([_an_hour(*pair) for pair in pairwise(rests)]) if len(rests) > 1 else None,
            rise([each.num_descriptors for each in taken], median),
            rise([each.num_threads for each in taken], median),
        )

    def complaints(self) -> list[str]:
        """What is too much."""
        found = []
        if self.in_use_an_hour is None:
            found.append("no process reported it")
        elif self.in_use_an_hour > MIB_PER_HOUR:
            found.append(f"{self.in_use_an_hour:.1f} MiB in use an hour")
        if self.more_resident > MORE_RESIDENT:
            found.append(f"{self.more_resident:.1f} MiB resident")
        if self.more_descriptors > MORE_DESCRIPTORS:
            found.append(f"{self.more_descriptors:.0f} descriptors")
        if self.more_threads > MORE_THREADS:
            found.append(f"{self.more_threads:.0f} threads")
        return found

    def __str__(self) -> str:
        steps = " ".join(f"{more:+.2f}" for more in self.more_in_use)
        in_use = "" if self.in_use_an_hour is None else f"in use {self.in_use_an_hour:+.1f} MiB/h ({steps}), "
        return (
            f"{in_use}resident {self.resident:.1f} MiB, {self.more_resident:+.1f}, "
            f"{self.more_descriptors:+.0f} descriptors, {self.more_threads:+.0f} threads"
        )


def _an_hour(before: Rest, after: Rest) -> float:
    """MiB."""
    return (after.bytes_in_use - before.bytes_in_use) / MIB / (after.at - before.at) * 3600


def rise(values: Sequence[float], of: Callable[[Sequence[float]], float]) -> float:
    """From the first quarter's minimum or median to the last one's: what comes and goes does not
    count.
    """
    quarter = max(1, len(values) // 4)
    return of(values[-quarter:]) - of(values[:quarter])
