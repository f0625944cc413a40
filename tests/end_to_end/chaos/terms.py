"""SIGTERM for processes that nobody else has told to end: the only engine replica (T4), the only
gateway (T5).
"""

import asyncio
import signal

from cluster.chaos.report import Report
from tests.end_to_end.chaos.app import app_args, running
from tests.end_to_end.chaos.options import Options
from tests.end_to_end.chaos.processes import ENGINE, GATEWAY
from tests.end_to_end.chaos.run import Load, disturbed, kill_every


def terminate_engine(options: Options) -> Report:
    """T4: SIGTERM for the only engine replica: as if it were killed; nothing is lost."""
    return _terminate("T4-term", ENGINE, options)


def terminate_gateway(options: Options) -> Report:
    """T5: SIGTERM for the only gateway: it ends its streams while Serve starts the next; nothing is
    lost.
    """
    return _terminate("T5-term", GATEWAY, options)


def _terminate(name: str, title: str, options: Options) -> Report:
    num_faults = options.pick(options.faults, 3, 1)
    load = Load(options.pick(options.streams, 100, 20), seed=options.seed)
    seconds = options.interval or (5.0 if options.quick else 30.0)
    deliver = kill_every(seconds, title, num_faults, seed=options.seed, number=signal.SIGTERM)
    with running(app_args({}, recovers=options.recovers, num_models=options.models)) as app:
        return asyncio.run(disturbed(name, app.url, load, num_faults=num_faults, deliver=deliver))
