"""The life of an engine replica's process: it reports, serves blocks to other nodes if it computes
prompts for engines there, and ends when it is told to, or when its engine has failed for good.
"""

import asyncio
import logging

from cluster.head import runs
from cluster.replica.departure import Departure
from cluster.replica.leaving.left_blocks import LeftBlocks
from cluster.replica.replica import Replica
from cluster.replica.serve_process import end_process, node_address
from engine.config import EngineConfig
from engine.errors import going_on
from engine.offload.peers.block_server import BlockServer

logger = logging.getLogger("squadron.engine")

REPORT_SECONDS = 0.2


class Life:
    """Of a replica that has started. Lives in one event loop."""

    def __init__(self, replica: Replica, patience: float, end_seconds: float) -> None:
        """`patience`: seconds for which a replica that is to end waits for the next one;
        `end_seconds`: that it has to end once it has handed back its requests.
        """
        self._end_seconds = end_seconds
        self._replica = replica
        self._departure = (
            Departure(replica.name, replica.engine.config, patience) if replica.name else None
        )  # None outside Serve
        self._left = LeftBlocks(replica.engine)
        self._blocks = _block_server(replica.engine.config)
        if self._blocks is not None:
            replica.condition.serves_at = self._blocks.address
            replica.condition.blocks_served = self._blocks.answers.num_served
        self._reporting = asyncio.create_task(self._report())
        self._leaving: asyncio.Task[None] | None = None  # once it is told to end

    def check_health(self) -> None:
        """Raises EngineDead, or ToldToStop after a SIGTERM; Serve then replaces the replica."""
        self._replica.engine.check_health()
        if self._departure is not None:
            self._departure.check()

    async def stay(self) -> None:
        """See `Departure.stay`."""
        assert self._departure is not None
        await self._departure.stay()

    def end(self) -> None:
        for task in (self._reporting, self._leaving):
            if task is not None:
                task.cancel()
        self._left.close()
        if self._blocks is not None:
            self._blocks.close()

    async def _report(self) -> None:
        """Tell the gateways how the replica is, and see whether it is to end."""
        while True:
            with going_on(logger, "reporting"):
                self._replica.requests.report()
                if self._departure is not None:
                    if self._departure.is_told() and self._leaving is None:
                        self._leaving = asyncio.create_task(self._leave(self._departure))
                    if self._replica.engine.is_dead and not self._replica.condition.is_stopping:
                        await self._give_up()
            await asyncio.sleep(REPORT_SECONDS)

    async def _leave(self, departure: Departure) -> None:
        with going_on(logger, "leaving"):
            await self._hand_over(departure)
        departure.leave(self._end_seconds)

    async def _hand_over(self, departure: Departure) -> None:
        """Serve until the next replica is ready, if it has room, and hand back what still runs,
        with its blocks.
        """
        condition, num_blocks = self._replica.condition, self._replica.engine.observer.stats().num_gpu_blocks
        await departure.hold()
        if await departure.is_deleted():
            await asyncio.to_thread(runs.end, departure.app_name)
        if not condition.is_stopping and await departure.has_room(num_blocks):
            condition.is_leaving = True
            await departure.wait()
        if not condition.is_stopping:
            blocks_at = await self._left.store() if await self._are_wanted(departure) else None
            self._replica.hand_back(blocks_at)
        await asyncio.sleep(REPORT_SECONDS)  # for the answers that are on their way
        await self._left.wait()
        self._left.close()

    async def _are_wanted(self, departure: Departure) -> bool:
        """Whether anybody goes on with any request here, and can have its blocks."""
        return len(self._replica.requests) > 0 and await departure.has_heirs()

    async def _give_up(self) -> None:
        """A replica that cannot answer any more is replaced as soon as its process has ended."""
        await asyncio.sleep(REPORT_SECONDS)  # for the answers that are on their way
        await asyncio.to_thread(self._replica.engine.shutdown)
        end_process()


def _block_server(config: EngineConfig) -> BlockServer | None:
    """If the engine hands blocks over by a folder that other nodes do not have."""
    if config.kv_role != "producer" or config.kv_offloading_path is None or config.kv_peer_secret is None:
        return None
    try:
        uses_nixl = config.kv_peer_transport == "nixl"
        return BlockServer(config.kv_offloading_path, node_address(), config.kv_peer_secret, uses_nixl=uses_nixl)
    except OSError as error:
        logger.error("no prompts are computed here for other engines: no blocks can be served: %s", error)
        return None
