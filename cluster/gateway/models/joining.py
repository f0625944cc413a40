"""How a model comes into an application that a gateway serves already."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import ray

from cluster.gateway.models.served import Served

logger = logging.getLogger("squadron.gateway")

AGAIN_SECONDS = 1.0  # after a try that failed


class Joining:
    """Of one model, tried until it succeeds: what fails may be another process' trouble."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Served]]) -> None:
        self._make = make
        self.making = asyncio.create_task(make())

    async def served(self) -> Served:
        """Once it takes requests."""
        while True:
            try:
                return await self._started()
            except Exception:
                logger.exception("the joining of a model failed; it is tried again")
            await asyncio.sleep(AGAIN_SECONDS)
            self.making = asyncio.create_task(self._make())

    async def _started(self) -> Served:
        served = await self.making
        try:
            await served.start(ray.util.get_node_ip_address())
        except BaseException:
            await served.gateway.close()
            raise
        return served
