"""Checks that the gateway reaches the running engine replicas. If it cannot for too long, it exits,
because its replacement may.
"""

import logging
import time

from cluster.replica.calls.engines import Engines
from cluster.replica.delta_channel.messages import GatewayAddress

logger = logging.getLogger("squadron.gateway")

INTRODUCTION_SECONDS = 1.0  # between checks for replicas that are not connected
BLIND_SECONDS = (
    10.0  # during which replicas run but none can be reached: Serve, or its part in this process, has failed
)


class Reach:
    """One gateway's check."""

    def __init__(self, engines: Engines, address: GatewayAddress) -> None:
        self._engines = engines
        self._address = address
        self._blind_since: float | None = None

    async def look(self, connected: set[str], *, is_served: bool) -> None:
        """Make replicas that are not `connected` connect, and end the process if no running one
        could be reached for BLIND_SECONDS. `is_served`: a replica is answering a request now. Must
        be called every INTRODUCTION_SECONDS.
        """
        is_reached = await self._engines.introduce(self._address, connected)
        if is_reached or is_served or not await self._engines.are_running():
            self._blind_since = None
            return
        now = time.monotonic()
        self._blind_since = self._blind_since or now
        if now - self._blind_since > BLIND_SECONDS:
            logger.error("engine replicas run, and none could be reached from here for %.0f s", BLIND_SECONDS)
            self._blind_since = None
            await self._engines.leave()
