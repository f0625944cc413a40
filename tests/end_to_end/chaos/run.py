"""One run: the streams undisturbed, the same streams while faults are delivered, and what came of
them.
"""

import asyncio
import itertools
import random
import signal
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from cluster.chaos.client import ChaosClient, Stream
from cluster.chaos.report import Fault, Report
from cluster.chaos.requests import make_requests
from cluster.chaos.run import answerable_kinds, show, undisturbed
from tests.end_to_end.chaos.processes import find, send

PATIENCE_SECONDS = 60.0  # for a process to kill
POLL_SECONDS = 0.02

Deliver = Callable[[list[Fault]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent."""

    num_streams: int
    concurrency: int = 64
    max_tokens: int = 200
    seed: int = 0
    silence_seconds: float = 300.0  # as long as the server waits for an engine; a busy machine takes minutes
    resumes: bool = False  # whether clients come back to streams that break


async def disturbed(
    name: str, url: str, load: Load, *, num_faults: int, deliver: Deliver, tolerated: frozenset[str] = frozenset()
) -> Report:
    """Streams are sent until all have been and `deliver` has returned."""
    async with ChaosClient(url, silence_seconds=load.silence_seconds, resumes=load.resumes) as client:
        model, *others = await client.models()
        adapter = await client.first_adapter()
        kinds = await answerable_kinds(client, model, adapter)
        given: dict[str, Any] = {"max_tokens": load.max_tokens, "seed": load.seed, "kinds": kinds}
        requests = make_requests(load.num_streams, model=model, others=others, adapter=adapter, **given)
        expected = await undisturbed(client, requests, load.concurrency)
        faults: list[Fault] = []
        streams: list[Stream] = []
        delivered, done = asyncio.Event(), asyncio.Event()

        async def deliver_all() -> None:
            try:
                await deliver(faults)
            finally:
                delivered.set()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(show(streams, faults, done, total=load.num_streams, label=name))
            tasks.create_task(deliver_all())
            await client.send_all(requests, concurrency=load.concurrency, streams=streams, stop=delivered)
            done.set()
        report = Report(name, num_faults, faults, streams, expected, tolerated)
        streamed = [stream for stream in streams if stream.arrivals and stream.request.body.get("stream")]
        waits = [stream.arrivals[0] - stream.sent for stream in streamed]
        report.figures["first tokens, s"] = (
            f"p50 {statistics.median(waits):.2f}, max {max(waits):.2f}" if waits else "-"
        )
        return report


def kill_every(
    seconds: float,
    title: str,
    num: int,
    *,
    seed: int = 0,
    spared: frozenset[int] = frozenset(),
    number: signal.Signals = signal.SIGKILL,
) -> Deliver:
    """The signal for a process of that title, each as likely as the others but for the `spared`, so
    many times.
    """
    generator = random.Random(seed)

    async def deliver(faults: list[Fault]) -> None:
        for _ in range(num):
            await asyncio.sleep(seconds)
            pid = await some_process(title, generator, spared)
            if pid is None:
                return
            at = time.monotonic()
            if send(pid, number):
                faults.append(Fault(f"{number.name} {title} {pid}", at))

    return deliver


async def some_process(title: str, generator: random.Random, spared: frozenset[int] = frozenset()) -> int | None:
    """One of the processes of that title and not `spared`, once there is any; None if there is none
    for long.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    for num_failed in itertools.count():
        pids = set(await asyncio.to_thread(find, title)) - spared
        if pids:
            return generator.choice(sorted(pids))
        if time.monotonic() > deadline:
            return None
        await asyncio.sleep(POLL_SECONDS * min(num_failed + 1, 25))
    return None
