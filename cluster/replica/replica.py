"""An engine replica: one engine, its requests, and reports of both to the gateways."""

import asyncio
import logging

from cluster.replica.answers import Answers
from cluster.replica.changes.changes import Changes
from cluster.replica.changes.start import Start
from cluster.replica.condition import Condition
from cluster.replica.requests import Requests
from cluster.replica.threads.tokenizing import Tokenizing
from cluster.replica.traces import Traces
from cluster.telemetry.tracing import Telemetry
from engine.config import EngineConfig
from engine.outputs import RequestOutput

logger = logging.getLogger("squadron.engine")

FLUSH_SECONDS = 1.0  # for spans that wait, at the end


class Replica:
    """Lives in one event loop. Knows nothing of Serve: see `Life` and `EngineDeployment`."""

    def __init__(self, start: Start, name: str, telemetry: Telemetry) -> None:
        """`name`: by which gateways know it; empty outside Serve."""
        self.name = name
        self.engine = start.make_engine(self._publish)
        self.condition = Condition(self.engine, name)
        self.answers = Answers(self.engine, name)
        self.tokenizing = Tokenizing(self.engine)
        self._traces = Traces(self.engine, name, telemetry)
        self.requests = Requests(self.engine, self.condition, self._traces)
        self.changes = Changes(self.engine, self.condition, self._tell_weights, start)
        self._sleep_level = start.rest.sleep_level
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def make(cls, config: EngineConfig, name: str, telemetry: Telemetry, token: str | None = None) -> "Replica":
        """With what it reads of the model on this node. `token`: of the application's
        owner; None outside Serve. Raises InvalidConfig, NoRecord.
        """
        return cls(await Start.read(config, token), name, telemetry)

    async def start(self) -> None:
        """Load the tokenizer and, unless it is to sleep, the model, and start the workers."""
        self.engine.tokenizer.start()
        await asyncio.to_thread(self.engine.start, self._sleep_level)
        logger.info("fingerprint %s: %s", self.condition.fingerprint, self.engine.observer.arithmetic)
        await self.changes.begin()

    def hand_back(self, blocks_at: str | None = None) -> None:
        """See `Requests.hand_back`; no more are taken."""
        self.condition.is_stopping = True
        logger.info("%d requests are handed back", len(self.requests))
        self.requests.hand_back(blocks_at)

    async def shut_down(self) -> None:
        """End the workers; idempotent."""
        await self._traces.flush(FLUSH_SECONDS)
        await asyncio.to_thread(self.engine.shutdown)

    async def close(self) -> None:
        """End everything."""
        self.changes.close()
        await self.shut_down()
        await self.requests.close()
        self.tokenizing.close()

    def _tell_weights(self) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self.requests.tell_weights)

    def _publish(self, deltas: list[RequestOutput]) -> None:
        """Called in the engine's thread, once a step."""
        self._loop.call_soon_threadsafe(self.requests.send, deltas)
