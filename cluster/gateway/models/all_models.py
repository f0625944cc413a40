"""The gateways of all models in one process, asked as one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import chain
from typing import Any

from cluster.api.errors import ApiError
from cluster.api.service import NOBODY, Arriving
from cluster.gateway.gateway import Gateway
from cluster.gateway.models.trace import write_trace
from cluster.metrics.text import FigureFamilies, MergedFamilies, render
from engine.admission.queue_limits import Load, Room
from engine.errors import Overloaded
from engine.request import NO_KEY, Share

MOST_SEEN = 2  # engine replicas that a page shows in full, if it has chosen none


class AllModels:
    """An `Application`."""

    def __init__(self, gateways: Sequence[Gateway] = (), *, names: Sequence[str] = ()) -> None:
        """One for each model; one at least, before any is asked for. `names`: of all models, where
        some have no gateway yet.
        """
        self._gateways = list(gateways)
        self._awaited = dict.fromkeys(names)

    def add(self, gateway: Gateway) -> None:
        """Of one of the models."""
        self._gateways.append(gateway)
        del self._awaited[gateway.monitoring.model_name]

    def check_room(
        self, more: Load, seconds: float | None = None, *, share: Share = NO_KEY, arriving: Arriving = NOBODY
    ) -> None:
        """See `Application`."""
        for gateway in self._gateways[:-1]:
            try:
                return gateway.check_room(more, seconds, share=share, arriving=arriving)
            except (Overloaded, ApiError):
                continue
        self._gateways[-1].check_room(more, seconds, share=share, arriving=arriving)

    def room(self, arriving: Load, *, by_key: bool = False) -> Room | None:
        """See `Application`."""
        rooms = [gateway.room(arriving, by_key=by_key) for gateway in self._gateways]
        known = [room for room in rooms if room is not None]
        if len(known) < len(rooms):
            return None
        fullest = min(known, key=lambda room: room.num_requests)
        return Room(sum(room.num_requests for room in known), max(room.seconds for room in known), fullest.limit)

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
        problems = await asyncio.gather(*(gateway.deep_health() for gateway in self._gateways))
        return [*chain(*problems), *(f"no engine of {name} has been there yet" for name in self._awaited)]

    async def engines(self) -> list[dict[str, Any]]:
        """See `Application`; of all models."""
        return [engine for gateway in self._gateways for engine in await gateway.engines()]

    def held(self) -> dict[str, int]:
        """See `Application`; of all models."""
        told = [gateway.held() for gateway in self._gateways]
        return {name: sum(each[name] for each in told) for name in ("requests", "waiting")}

    async def view(self, chosen: str | None = None) -> list[dict[str, Any]]:
        """See `Application`; of all models."""
        names = list(chain(*(gateway.view.replicas() for gateway in self._gateways)))
        seen = [chosen] if chosen in names else names[:MOST_SEEN]
        views = await asyncio.gather(*(gateway.view.now(seen) for gateway in self._gateways))
        return list(chain(*views))

    async def worker_pids(self) -> dict[str, Sequence[int]]:
        """See `Gateway`; of all models."""
        told = await asyncio.gather(*(gateway.worker_pids() for gateway in self._gateways))
        return {replica: pids for each in told for replica, pids in each.items()}

    def figures(self) -> MergedFamilies:
        """All that this process knows. A model that has had no engine yet has none."""
        known = [gateway.monitoring.figures() for gateway in self._gateways]
        none = [FigureFamilies({("squadron:engines", ()): 0.0}, {}, name) for name in self._awaited]
        return MergedFamilies([*known, *none])

    async def metrics(self) -> bytes:
        """All metrics, for operators' monitoring; see `Monitoring`."""
        return render(self.figures())

    async def trace(self) -> AsyncGenerator[bytes, None]:
        """See `Application`; each replica of each model is a process of the trace. A model may have
        no engine now.
        """
        traced = [gateway for gateway in self._gateways if await gateway.engines()] or self._gateways
        async for piece in write_trace([gateway.ask for gateway in traced]):
            yield piece

    async def why(self, request_id: str) -> dict[str, Any] | None:
        """See `Gateway.why`."""
        for gateway in self._gateways:
            told = await gateway.why(request_id)
            if told is not None:
                return told
        return None
