"""An engine of this process' own: in it for one rank, otherwise on Ray."""

import contextlib

import ray

from cluster.checkpoint.values import check_values
from cluster.download.models import fetched, planned
from cluster.launch.machine import check_machine
from cluster.launch.ray_cluster import ray_cluster
from cluster.offline.listeners import Listeners, NextOutputs
from cluster.workers.executor import make_executor
from engine.config import EngineConfig
from engine.frontend.async_engine import AsyncEngine
from engine.request import Request


class OfflineEngine:
    """Runs until `close`. With more than one rank the workers run on the Ray cluster that this
    process is connected to, or on one that is started on this machine.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Raises InvalidConfig."""
        config, plan = planned(config)
        needs_cluster = not config.runs_in_process and not ray.is_initialized()
        if config.runs_in_process or needs_cluster:
            check_machine(config, plan)
            config = fetched(config)
        self._listeners = Listeners(lambda: self._engine.check_health())
        with contextlib.ExitStack() as stack:
            if needs_cluster:
                check_values(config)
                stack.enter_context(ray_cluster(num_workers=config.world_size))
            self._engine = AsyncEngine(config, make_executor(config), on_outputs=self._listeners.tell)
            stack.callback(self._engine.shutdown)
            self._engine.start()
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Stop the workers, and Ray if it was started here; idempotent."""
        self._stack.close()

    @property
    def engine(self) -> AsyncEngine:
        return self._engine

    def add_request(self, request: Request) -> None:
        """Raises InvalidRequest."""
        self._engine.add_request(request)

    def abort(self, request_id: str) -> None:
        self._engine.abort(request_id)

    def listening(self) -> contextlib.AbstractContextManager[NextOutputs]:
        """See `Listeners.one`."""
        return self._listeners.one()
