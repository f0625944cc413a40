"""The gateways of all models in one process, asked as one."""

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import Any

from cluster.gateway.gateway import Gateway
from cluster.metrics.text import MergedFamilies, render
from engine.admission.queue_limits import NOTHING, Load, Room
from engine.errors import Overloaded


class AllModels:
    """An `Application`."""

    def __init__(self, gateways: Sequence[Gateway]) -> None:
        """One for each model, one at least."""
        self._gateways = tuple(gateways)

    def check_room(self, more: Load, *, arriving: Load = NOTHING) -> None:
        """See `Application`."""
        for gateway in self._gateways[:-1]:
            try:
                return gateway.check_room(more, arriving=arriving)
            except Overloaded:
                continue
        self._gateways[-1].check_room(more, arriving=arriving)

    def room(self, arriving: Load) -> Room | None:
        """See `Application`."""
        rooms = [gateway.room(arriving) for gateway in self._gateways]
        known = [room for room in rooms if room is not None]
        if len(known) < len(rooms):
            return None
        return Room(sum(room.num_requests for room in known), max(room.seconds for room in known))

    def abort(self, request_id: str) -> None:
        """See `Gateway`."""
        for gateway in self._gateways:
            gateway.abort(request_id)

    async def drain(self, grace: float) -> None:
        """See `Gateway`."""
        await asyncio.gather(*(gateway.drain(grace) for gateway in self._gateways))

    async def health(self) -> list[str]:
        """See `Application`."""
        problems = [await gateway.health() for gateway in self._gateways]
        return list(chain(*problems)) if all(problems) else []

    async def deep_health(self) -> list[str]:
        """See `Application`: of every model."""
        return list(chain(*await asyncio.gather(*(gateway.deep_health() for gateway in self._gateways))))

    async def engines(self) -> list[dict[str, Any]]:
        """See `Application`; of all models."""
        return [engine for gateway in self._gateways for engine in await gateway.engines()]

    def figures(self) -> MergedFamilies:
        """All that this process knows."""
        return MergedFamilies([gateway.monitoring.figures() for gateway in self._gateways])

    async def metrics(self) -> bytes:
        """All metrics, for operators' monitoring; see `Monitoring`."""
        return render(self.figures())

    async def trace(self) -> dict[str, Any]:
        """The last steps of every engine replica; each replica is a process of the trace."""
        events: list[dict[str, Any]] = []
        for gateway in self._gateways:
            trace, first = await gateway.trace(), max((event["pid"] + 1 for event in events), default=0)
            events += [event | {"pid": first + event["pid"]} for event in trace["traceEvents"]]
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    async def why(self, request_id: str) -> dict[str, Any] | None:
        """See `Gateway.why`."""
        for gateway in self._gateways:
            told = await gateway.why(request_id)
            if told is not None:
                return told
        return None
