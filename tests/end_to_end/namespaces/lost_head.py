"""The head's processes die (T9): its GCS, or all of them; then a rank, which must be replaced.
Clients ask at another node's door.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from itertools import pairwise

from cluster.chaos.report import Fault, Report
from cluster.launch.node.gcs_keeper import PROGRAM
from tests.end_to_end.chaos.options import QUICK_STREAMS, Options
from tests.end_to_end.chaos.processes import SERVING, descendants, find, send, title_of
from tests.end_to_end.chaos.run import Deliver, Load, disturbed
from tests.end_to_end.namespaces.app import GATEWAY_NAME, App, inside, on_nodes, running, url_of
from tests.end_to_end.namespaces.ray_nodes import eventually

SETTLE_SECONDS = 3.0
NUM_WORKERS = 2


def lose_gcs(options: Options) -> Report:
    """T9-gcs: the head's GCS is killed twice under streams, and its keeper starts it again; then a
    rank is killed.
    """
    return _on_cluster("T9-gcs", options, _kill_gcs, num_faults=options.pick(options.faults, 2, 1))


def lose_head(options: Options) -> Report:
    """T9-head: all of Ray's processes on the head are killed under streams, and Ray is started
    there again, with what its GCS had stored; then a rank is killed.
    """
    return _on_cluster("T9-head", options, _kill_head, num_faults=1)


def _on_cluster(name: str, options: Options, kill: Callable[[App], str], *, num_faults: int) -> Report:
    """With a gateway on each node, of which a worker's is asked."""
    inside()
    load = Load(options.pick(options.streams, 100, QUICK_STREAMS), concurrency=16, seed=options.seed)
    args = on_nodes({"tensor_parallel_size": 2}, recovers=options.recovers, num_gateways=1 + NUM_WORKERS)
    with running(args, NUM_WORKERS, apart=GATEWAY_NAME) as app:
        url = url_of(next(iter(app.nodes.workers.values())))
        deliver = _deliver(app, kill, num_faults, options.interval or SETTLE_SECONDS)
        report = asyncio.run(disturbed(name, url, load, num_faults=num_faults + 1, deliver=deliver))
        report.figures["nodes alive"] = len(eventually(app.nodes.alive))
        report.figures["longest silence before the rank's end, s"] = _longest_silence(report)
        return report


def _deliver(app: App, kill: Callable[[App], str], num_faults: int, seconds: float) -> Deliver:
    async def deliver(faults: list[Fault]) -> None:
        for _ in range(num_faults):
            await asyncio.sleep(seconds)
            at = time.monotonic()
            faults.append(Fault(await asyncio.to_thread(kill, app), at, interrupts=False))
            print(f"Ray and Serve are well again after {time.monotonic() - at:.1f} s", flush=True)
        await asyncio.sleep(seconds)
        pid = next(pid for worker in app.nodes.workers.values() for pid in find(SERVING, worker.process.pid))
        faults.append(Fault(f"kill -9 rank {pid}", time.monotonic()))
        send(pid, signal.SIGKILL)
        await asyncio.sleep(seconds)

    return deliver


def _longest_silence(report: Report) -> float:
    """In a stream, seconds; until the last fault, after which streams are silent for long."""
    end = report.faults[-1].at
    arrivals = [[at for at in stream.arrivals if at < end] for stream in report.streams]
    return round(max(after - before for each in arrivals for before, after in pairwise(each)), 2)


def _kill_gcs(app: App) -> str:
    """Returns once Ray knows all nodes, and Serve says that all runs."""
    (pid,) = [pid for pid in descendants(app.nodes.head.first) if PROGRAM in title_of(pid).partition(" ")[0]]
    send(pid, signal.SIGKILL)
    _wait_until_well(app)
    return f"kill -9 {PROGRAM} {pid}"


def _kill_head(app: App) -> str:
    """The same, once Ray has been started again."""
    killed = [pid for pid in descendants(app.nodes.head.first) if send(pid, signal.SIGKILL)]
    app.nodes.start_head()
    _wait_until_well(app)
    return f"kill -9 all {len(killed)} processes of the head"


def _wait_until_well(app: App) -> None:
    eventually(lambda: len(app.nodes.alive()) == 1 + NUM_WORKERS)
    eventually(app.nodes.is_running)
