"""One of several gateways of an application. To answer a question, it also asks the others."""

import functools
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from cluster.gateway.engines.questions import ask_all, ask_those_that_answer
from cluster.gateway.gateway import Gateway
from cluster.metrics.ledger import Ledger
from cluster.metrics.ray_export import export_figures
from cluster.metrics.text import FigureFamilies
from cluster.replica.serve_process import actor_name
from cluster.serve_status import running_replicas


class PeerGateway(Gateway):
    """Answers questions for all gateways; their deployment has a method `..._here` for each
    question.
    """

    async def abort_anywhere(self, request_id: str) -> None:
        """End the request on whichever gateway it is."""
        await _all_gateways().broadcast("abort_here", request_id).results_async()

    async def look_for_adapters(self) -> None:
        """Have every gateway learn what was loaded and unloaded on this one."""
        await ask_those_that_answer(_all_gateways(), "look_for_adapters_here")

    async def why(self, request_id: str) -> dict[str, Any] | None:
        told = await self.why_here(request_id)
        if told is not None:
            return told
        answers = await ask_all(_all_gateways(), "why_here", request_id)
        return next((answer for answer in answers if answer is not None), None)

    async def why_here(self, request_id: str) -> dict[str, Any] | None:
        """What this gateway knows."""
        return await super().why(request_id)

    async def start(self, host: str) -> None:
        await super().start(host)
        self.spawn(export_figures(self.figures))

    async def metrics(self) -> bytes:
        await self._ask_for_figures()
        return await super().metrics()

    async def figures(self) -> FigureFamilies:
        """What `metrics` tells."""
        await self._ask_for_figures()
        return self.monitoring.figures()

    async def _ask_for_figures(self) -> None:
        gateways = _all_gateways()
        if running_replicas(gateways) != {actor_name()}:  # the only gateway has no other to ask
            own = self.monitoring.exchange(Ledger())
            for ledger in await ask_those_that_answer(gateways, "exchange_here", own):
                self.monitoring.exchange(ledger)


@functools.cache
def _all_gateways() -> DeploymentHandle[Any]:
    me = serve.get_replica_context()
    return serve.get_deployment_handle(me.deployment, me.app_name)
