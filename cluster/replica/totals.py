"""Totals that an engine replica's process has counted since its start."""

import time
from dataclasses import dataclass, field

from cluster.workers.nodes_memory import bytes_per_block
from engine.frontend.async_engine import AsyncEngine
from engine.records.measures import Measured


@dataclass(frozen=True, slots=True)
class EngineTotals:
    """Part of an `EngineReport`; `stats` has the rest."""

    made: float = 0.0  # when, in seconds since 1970
    cpu_seconds: float = 0.0  # of the process
    block_bytes: int = 0  # of a block of cache, on all ranks
    measured: Measured = field(default_factory=Measured)


class Totals:
    """Makes them."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._block_bytes = bytes_per_block(engine.config)

    def now(self) -> EngineTotals:
        return EngineTotals(time.time(), time.process_time(), self._block_bytes, self._engine.observer.measured())
