"""Whether the gateway reaches the engine replicas that run: a gateway that does not for long ends,
for another in its place may.
"""

import logging
import time

from cluster.replica.delta_channel import GatewayAddress
from cluster.replica.engines import Engines

logger = logging.getLogger("squadron.gateway")

INTRODUCTION_SECONDS = 1.0  # between two looks for replicas that are not connected
BLIND_SECONDS = 10.0  # that replicas run and none can be reached from here: Serve, or our part of it, is not well


class Reach:
    """One gateway's."""

    def __init__(self, engines: Engines, address: GatewayAddress) -> None:
        self._engines = engines
        self._address = address
        self._blind_since: float | None = None

    async def look(self, connected: set[str], *, is_served: bool) -> None:
        """Have replicas that are not `connected` connect, and end the process if none that runs
        could be reached for BLIND_SECONDS.

        `is_served`: a replica answers a request now. To be called every INTRODUCTION_SECONDS.
        """
        is_reached = await self._engines.introduce(self._address, connected)
        if is_reached or is_served or not await self._engines.are_running():
            self._blind_since = None
            return
        now = time.monotonic()
        self._blind_since = self._blind_since or now
        if now - self._blind_since > BLIND_SECONDS:
            logger.error("engine replicas run, and none could be reached from here for %.0f s", BLIND_SECONDS)
            await self._engines.leave()
