"""Changes that an operator makes (T10) by `serve deploy`, with engines on nodes of their own."""

import asyncio
import re
import time
import urllib.request
from typing import Any

from cluster.chaos.report import Fault, Report
from tests.end_to_end.chaos.options import QUICK_STREAMS, Options
from tests.end_to_end.chaos.run import Deliver, Load, disturbed
from tests.end_to_end.namespaces.app import ENGINE_NAME, App, inside, on_nodes, running

SETTLE_SECONDS = 5.0
LONG_TOKENS = 1000
NUM_WORKERS = 3  # each has one engine at most, and the next one needs a node
READ = re.compile(r'^squadron:offloaded_bytes_total\{.*direction="in".*\} (\S+)$', re.MULTILINE)


def update(options: Options) -> Report:
    """T10: 2 engines, 1, 2, and all replaced by a rolling update, under long streams; engines go on
    with what those on other nodes have left.
    """
    inside()
    args = on_nodes({}, recovers=options.recovers, num_engines=2, open_metrics=True)
    # Serve limits engines of a node only where workers have no places of their own.
    args["engine"] = args["engine"] | {"distributed_executor_backend": "local"}
    steps = {
        "scale to 1": args | {"num_engines": 1},
        "scale to 2": args,
        "rolling update": args | {"engine": args["engine"] | {"max_num_seqs": 128}},
    }
    streams = options.pick(options.streams, 32, QUICK_STREAMS)
    load = Load(streams, concurrency=8, max_tokens=LONG_TOKENS, seed=options.seed)
    with running(args, NUM_WORKERS, apart=ENGINE_NAME) as app:
        deliver = _apply(app, steps, options.interval or SETTLE_SECONDS)
        report = asyncio.run(disturbed("T10", app.url, load, num_faults=len(steps), deliver=deliver))
        report.figures["read from other nodes, bytes"] = read = _bytes_read(app)
        if not read:
            report.unmet.append("no engine has read what another one has left")
        return report


def _apply(app: App, steps: dict[str, dict[str, Any]], seconds: float) -> Deliver:
    """One change after the other."""

    async def deliver(faults: list[Fault]) -> None:
        for name, args in steps.items():
            await asyncio.sleep(seconds)
            faults.append(Fault(name, time.monotonic()))
            await asyncio.to_thread(app.change, args)
        await asyncio.sleep(seconds)

    return deliver


def _bytes_read(app: App) -> float:
    """Of the cache, by engines that are there now, from what others have left."""
    with urllib.request.urlopen(f"{app.url}/metrics", timeout=60) as answer:
        return sum(map(float, READ.findall(answer.read().decode())))
