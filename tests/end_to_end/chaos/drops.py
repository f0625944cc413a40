"""Clients that go away (T16): nothing of theirs may be left, in the queue, the cache or a
gateway.
"""

import asyncio
import random
import time
from collections import Counter
from typing import Any

import httpx

from cluster.chaos.client import ChaosClient, Stream
from cluster.chaos.report import Fault, Report
from cluster.chaos.requests import ChaosRequest, make_requests
from cluster.chaos.run import undisturbed
from tests.end_to_end.chaos.app import ANY_QUEUE, FOUR_RANKS, App, app_args, running
from tests.end_to_end.chaos.options import Options
from tests.end_to_end.chaos.run import POLL_SECONDS

SHARE_DROPPED = 0.7
NUM_DIFFERENT = 100
CONCURRENCY = 64
MAX_BYTES = 20_000  # of a stream that is dropped
CLEAN_SECONDS = 2.0
PATIENCE_SECONDS = 20.0


def drop_clients(options: Options) -> Report:
    """T16: 2,000 requests, 70 % of them dropped at a random byte: within 2 s nothing runs, all
    blocks are free, and the gateway has no request and no task that it had not before.
    """
    num = options.pick(options.streams, 2000, 120)
    with running(app_args(FOUR_RANKS | ANY_QUEUE, recovers=options.recovers, max_queue_seconds=0)) as app:
        before = gateway(app)
        report = asyncio.run(_drop(app.url, num, options.seed))
        begin = time.monotonic()
        while (left := leftovers(app) + kept(gateway(app), before)) and time.monotonic() < begin + PATIENCE_SECONDS:
            time.sleep(POLL_SECONDS)
        seconds = time.monotonic() - begin
        after = gateway(app)
    report.figures["clean after, s"] = round(seconds, 2)
    report.figures["of the gateway"] = "; ".join(
        f"{when} {told['requests']} requests, {sum(told['tasks'].values())} tasks"
        for when, told in (("before", before), ("after", after))
    )
    if seconds > CLEAN_SECONDS:
        report.unmet.append(f"{seconds:.1f} s after the last client: {left or 'clean, but late'}")
    return report


def leftovers(app: App) -> list[str]:
    """What the engines still hold, though nobody asks."""
    left = []
    for number, stats in enumerate(app.stats()):
        held = {name: stats[f"num_requests_{name}"] for name in ("running", "waiting", "swapped")}
        for pool in ("gpu", "cpu"):
            held[f"{pool} blocks"] = stats[f"num_{pool}_blocks"] - stats[f"num_free_{pool}_blocks"]
        left += [f"engine {number}: {count} {name}" for name, count in held.items() if count]
    return left


def gateway(app: App) -> dict[str, Any]:
    """What the only gateway tells that it holds."""
    answer = httpx.get(f"{app.url}/debug/engines", timeout=PATIENCE_SECONDS)
    answer.raise_for_status()
    told: dict[str, Any] = answer.json()["gateway"]
    return told


def kept(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """What a gateway still holds, though nobody asks."""
    more = Counter(now["tasks"]) - Counter(before["tasks"])
    held = {name: now[name] for name in ("requests", "waiting")} | {f"tasks of {name}": more[name] for name in more}
    return [f"the gateway: {count} {name}" for name, count in held.items() if count]


async def _drop(url: str, num: int, seed: int) -> Report:
    async with ChaosClient(url) as client:
        requests = make_requests(NUM_DIFFERENT, model=await client.first_model(), max_tokens=100, seed=seed)
        expected = await undisturbed(client, requests, CONCURRENCY)
        kept, faults = await drop_some(client, requests, num, seed)
    return Report("T16", num // 2, faults, kept, expected)


async def drop_some(
    client: ChaosClient, requests: list[ChaosRequest], num: int, seed: int
) -> tuple[list[Stream], list[Fault]]:
    """So many requests; the streams that were read to their end, and the drops of the others."""
    generator = random.Random(seed)
    plan = [
        (
            requests[number % len(requests)],
            generator.randrange(1, MAX_BYTES) if generator.random() < SHARE_DROPPED else None,
        )
        for number in range(num)
    ]
    kept: list[Stream] = []
    faults: list[Fault] = []
    source = iter(plan)

    async def work() -> None:
        for request, drop_after in source:
            stream = await client.stream(request, drop_after=drop_after)
            if drop_after is None or stream.transcript.is_complete:
                kept.append(stream)
            else:
                faults.append(Fault(f"dropped after {drop_after} bytes", time.monotonic(), interrupts=False))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONCURRENCY):
            tasks.create_task(work())
    return kept, faults
