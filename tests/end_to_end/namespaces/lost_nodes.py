"""Nodes that are lost without grace (T7): their cables first, so that nobody is told."""

import asyncio
import time

from cluster.chaos.report import Fault, Report
from tests.end_to_end.chaos.options import QUICK_STREAMS, Options
from tests.end_to_end.chaos.run import Deliver, Load, disturbed
from tests.end_to_end.namespaces.app import App, inside, on_nodes, running
from tests.end_to_end.namespaces.ray_nodes import eventually

SETTLE_SECONDS = 5.0
NUM_WORKERS = 3  # one of them spare
FOUR_STAGES = {"pipeline_parallel_size": 4}  # which, with the engine, are more than fit on one node


def lose_nodes(options: Options) -> Report:
    """T7: of an engine whose two stages are on two nodes, the node of one stage is lost, and then
    that of the engine and the other; a third node is spare.
    """
    inside()
    load = Load(options.pick(options.streams, 60, QUICK_STREAMS), concurrency=16, seed=options.seed)
    num_faults = options.pick(options.faults, 2, 1)
    with running(on_nodes(FOUR_STAGES, recovers=options.recovers), NUM_WORKERS) as app:
        deliver = _lose(app, num_faults, options.interval or SETTLE_SECONDS)
        return asyncio.run(disturbed("T7", app.url, load, num_faults=num_faults, deliver=deliver))


def _lose(app: App, num_faults: int, seconds: float) -> Deliver:
    """The stages' nodes in turns, each once a spare one is there."""

    async def deliver(faults: list[Fault]) -> None:
        for number in range(num_faults):
            if number:
                await asyncio.to_thread(app.add_worker)
                await asyncio.to_thread(eventually, app.with_ranks)  # on the node that was spare
            await asyncio.sleep(seconds)
            (machine,) = app.with_engine() if number % 2 else app.with_ranks()
            what = "engine and a stage" if number % 2 else "a stage"
            at = time.monotonic()
            app.lose(machine)
            faults.append(Fault(f"{machine.name} lost: {what}", at))
        await asyncio.sleep(seconds)

    return deliver
