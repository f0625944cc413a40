"""What an engine replica starts with: the model as this node has it, and the weights that it should
have by now. While the others sleep it starts asleep, so that it takes nobody's memory.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from cluster.weights.record import NONE, Change, WeightsRecord, last_change, own_record
from cluster.weights.rest import RUNS, Rest
from cluster.workers.executor import make_executor, with_model_here
from engine.config import EngineConfig
from engine.frontend.async_engine import AsyncEngine
from engine.offload.shared_folder import new_folder
from engine.outputs import RequestOutput

logger = logging.getLogger("squadron.engine")


@dataclass(frozen=True, slots=True)
class Start:
    config: EngineConfig
    record: WeightsRecord | None = None  # None outside Serve
    change: Change = NONE  # what the record says
    rest: Rest = RUNS  # and whether its engine is to start asleep, or paused

    @classmethod
    async def read(cls, config: EngineConfig, token: str | None) -> "Start":
        """With what is read of the model on this node. `token`: of the application's owner; None
        outside Serve. Raises InvalidConfig, NoRecord.
        """
        config = with_own_folder(config)
        record = None if token is None else await asyncio.to_thread(own_record, token, config.model)
        change = NONE if record is None else await asyncio.to_thread(last_change, record)
        config = await asyncio.to_thread(with_model_here, config, logger.info)
        rest = RUNS if record is None else await asyncio.to_thread(record.rest.read)
        return cls(config, record, change, rest)

    def make_engine(self, on_outputs: Callable[[list[RequestOutput]], None]) -> AsyncEngine:
        """Raises InvalidConfig."""
        weights = self.change.weights
        executor = make_executor(self.config, weights)
        return AsyncEngine(self.config, executor, on_outputs=on_outputs, weights=weights)


def with_own_folder(config: EngineConfig) -> EngineConfig:
    """The configuration of one engine: each leaves its blocks in a folder of its own, unless it
    stores them in one that others read anyway.
    """
    if not config.kv_leaving_size or config.stores_for_others:
        return config
    return config.model_copy(update={"kv_leaving_path": new_folder()})
