"""Changes that an operator makes (T10): another configuration, more and fewer replicas."""

import asyncio
import time
from typing import Any

from ray import serve

from cluster.chaos.report import Fault, Report
from cluster.launch.app import APP_NAME, build_app
from tests.end_to_end.chaos.app import app_args, running
from tests.end_to_end.chaos.options import QUICK_STREAMS, Options
from tests.end_to_end.chaos.run import Deliver, Load, disturbed

LONG_TOKENS = 1500
SHORT_TOKENS = 400  # of streams that a server which ends can still finish


def update(options: Options) -> Report:
    """T10: 2 engines, 1, 2, and all replaced by a rolling update, under long streams; minutes on
    two cores: each of the three replaces every replica, one engine at a time, and a gateway once
    its streams have ended.
    """
    args = app_args({}, recovers=options.recovers, num_engines=2)
    steps = {
        "scale to 1": args | {"num_engines": 1},
        "scale to 2": args,
        "rolling update": args | {"engine": args["engine"] | {"max_num_seqs": 128}},
    }
    tokens = SHORT_TOKENS if options.quick else LONG_TOKENS
    load = Load(options.pick(options.streams, 32, QUICK_STREAMS), concurrency=8, max_tokens=tokens, seed=options.seed)
    with running(args) as app:
        deliver = _apply(steps, options.interval or 5.0)
        return asyncio.run(disturbed("T10", app.url, load, num_faults=len(steps), deliver=deliver))


def _apply(steps: dict[str, dict[str, Any]], seconds: float) -> Deliver:
    async def deliver(faults: list[Fault]) -> None:
        for name, args in steps.items():
            await asyncio.sleep(seconds)
            at = time.monotonic()
            await asyncio.to_thread(serve.run, build_app(args), name=APP_NAME, route_prefix="/")
            faults.append(Fault(name, at))
        await asyncio.sleep(seconds)

    return deliver
