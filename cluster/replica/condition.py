"""An engine replica's condition: it is reported to the gateways several times a second, and decides
whether the replica takes a request.
"""

import os
import time
from collections.abc import Mapping

from cluster.replica.delta_channel.messages import AdaptersInUse, EngineReport
from cluster.replica.refusals.refusal import EngineStopping
from cluster.replica.serve_process import node_id
from cluster.replica.totals import Totals
from cluster.workers.steps.deadline import FIRST_SECONDS
from engine.errors import FingerprintChanged
from engine.frontend.async_engine import AsyncEngine
from engine.request import Request

# What is told of the configuration of the cache: vLLM's name, and the field here.
CACHE_FIELDS = {
    "block_size": "block_size",
    "cache_dtype": "kv_cache_dtype",
    "enable_prefix_caching": "enable_prefix_caching",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
    "kv_offloading_size": "kv_offloading_size",
    "num_gpu_blocks_override": "num_gpu_blocks_override",
}
# Without the end of a step while requests wait for one: so many seconds more than SLOWER times what
# the slowest earlier one of its size took, and for the first ones as many as workers have.
STUCK_SECONDS = 10.0
SLOWER = 2.0


class Condition:
    """Is asked once the engine has started."""

    def __init__(self, engine: AsyncEngine, name: str) -> None:
        """`name`: the replica's."""
        self.is_leaving = False  # the replica is told to end, and serves until the next one is ready
        self.is_stopping = False  # it ends
        self.weights_number = 0  # of the last change of weights; 0: there was none
        self.lack: str | None = None  # one line on the weights that it should have and has not
        self.serves_at: str | None = None  # the address of its `BlockServer`, if it has one
        self.blocks_served: Mapping[str, int] = {}  # by it so far
        self._totals = Totals(engine)
        self._cache = {name: str(getattr(engine.config, field)) for name, field in CACHE_FIELDS.items()}
        self._engine = engine
        self.name = name
        self._num_steps = 0  # number of ended steps at the last look
        self._waiting_since = time.monotonic()  # since when the next one is awaited

    @property
    def fingerprint(self) -> str:
        return self._engine.observer.fingerprint

    @property
    def weights_version(self) -> str | None:
        """That the engine was given; None: it has the model's own."""
        weights = self._engine.observer.weights
        return None if weights is None else weights.version

    def check(self, request: Request) -> None:
        """Raises EngineStopping, FingerprintChanged, EngineDead or Overloaded if the replica cannot
        take the request now.
        """
        if self.is_stopping:
            raise EngineStopping("this engine replica is told to stop")
        if self.lack is not None:
            raise EngineStopping(self.lack)
        wanted, own = request.resume.fingerprint, self.fingerprint
        if own and wanted not in (None, own):  # an engine without one sleeps, and looks when it wakes up
            raise FingerprintChanged(f"its tokens have the fingerprint {wanted}, and this engine has {own}")
        self._engine.check_health()
        self._engine.check_queue(request)

    def look(self) -> EngineReport:
        """Must be called repeatedly: a stuck step is recognized by comparison with earlier
        calls.
        """
        stats, now = self._engine.observer.stats(), time.monotonic()
        if stats.num_steps != self._num_steps or not stats.num_requests_running or self._engine.observer.is_frozen:
            self._num_steps, self._waiting_since = stats.num_steps, now
        return EngineReport(
            self.name,
            node_id(),
            os.getpid(),
            self._problem(now - self._waiting_since),
            stats,
            self.fingerprint,
            self._engine.observer.arithmetic,
            self._engine.observer.queue_limits(),
            self._totals.now(),
            self.is_leaving and not self.is_stopping,
            self.weights_number,
            self.weights_version,
            self._engine.config.kv_role == "producer",
            self._engine.observer.num_cleared,
            self._blocks_at(),
            self._engine.observer.sleep_level,
            self._adapters(),
            self._cache,
            self._engine.observer.is_frozen,
            dict(self.blocks_served),
        )

    @property
    def nodes(self) -> set[str]:
        """Of this process and of the engine's ranks."""
        return {node_id(), *self._engine.observer.worker_nodes()}

    def _adapters(self) -> AdaptersInUse | None:
        if not self._engine.config.enable_lora:
            return None
        return AdaptersInUse(*self._engine.observer.adapters, self._engine.config.max_loras)

    def _blocks_at(self) -> str | None:
        """Where blocks of all ranks are served: those of ranks on other nodes are not here."""
        return self.serves_at if len(self.nodes) == 1 else None

    def _problem(self, seconds: float) -> str | None:
        """One line on why it cannot answer now; `seconds` since a step ended, if one should
        have.
        """
        if self.is_stopping:
            return "it is told to stop"
        if self.lack is not None:
            return self.lack
        expected = self._engine.observer.seconds_in_flight
        if seconds > (FIRST_SECONDS if expected is None else STUCK_SECONDS + SLOWER * expected):
            return f"no step has ended for {seconds:.0f} s"
        return self._engine.observer.problem()
