"""A Ray on this machine alone, without what nobody uses there."""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

from ray._private import node, parameter

SETUP_WORKER = Path(__file__).with_name("setup_worker.py")


@contextlib.contextmanager
def without_what_nobody_uses() -> Iterator[None]:
    """The node that is started meanwhile has no autoscaler and no server for a dashboard, each of
    them a Python process, 80 MB and two seconds of processor time; it starts workers by
    `SETUP_WORKER`.
    """
    params, start_api_server = parameter.RayParams, node.Node.start_api_server
    used = {"no_monitor": True, "setup_worker_path": str(SETUP_WORKER)}
    parameter.RayParams = functools.partial(params, **used)
    node.Node.start_api_server = lambda *_, **__: None
    try:
        yield
    finally:
        parameter.RayParams, node.Node.start_api_server = params, start_api_server
