"""One of several gateway replicas of an application, with all models. To answer a question, it also
asks the others; their deployment has a method `..._here` for each question.
"""

import functools
from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from cluster.gateway.engines.questions import ask_all, ask_those_that_answer
from cluster.gateway.models.all_models import AllModels
from cluster.metrics.ledger import Ledger
from cluster.metrics.ray_export import export_figures
from cluster.metrics.text import MergedFamilies
from cluster.replica.serve_process import actor_name
from cluster.serve_status import running_replicas

ABORT_SECONDS = 10.0  # for all gateways to answer


class PeerGateways(AllModels):
    """Those of one replica."""

    def start(self) -> None:
        """Once a gateway has started."""
        self._gateways[0].spawn(export_figures(self.families))

    async def abort_anywhere(self, request_id: str) -> None:
        """End it on whichever gateway it is; one that does not answer now does so later."""
        await ask_those_that_answer(_all_replicas(), "abort_here", request_id, seconds=ABORT_SECONDS)

    async def why(self, request_id: str) -> dict[str, Any] | None:
        told = await self.why_here(request_id)
        if told is not None:
            return told
        answers = await ask_all(_all_replicas(), "why_here", request_id)
        return next((answer for answer in answers if answer is not None), None)

    async def why_here(self, request_id: str) -> dict[str, Any] | None:
        """What this replica knows."""
        return await super().why(request_id)

    async def metrics(self) -> bytes:
        await self._ask_for_figures()
        return await super().metrics()

    async def families(self) -> MergedFamilies:
        """What `metrics` tells."""
        await self._ask_for_figures()
        return self.figures()

    def exchange(self, others: Mapping[str, Ledger]) -> dict[str, Ledger]:
        """Takes another replica's figures, by model, and returns this one's. While the application
        is being changed, the other may have other models.
        """
        figures = [gateway.monitoring for gateway in self._gateways]
        return {each.model_name: each.exchange(others.get(each.model_name, Ledger())) for each in figures}

    async def _ask_for_figures(self) -> None:
        replicas = _all_replicas()
        running = running_replicas(replicas)
        if running != {actor_name()}:  # the only one has no other to ask
            own = self.exchange({})
            told = await ask_those_that_answer(replicas, "exchange_here", own)
            for ledgers in told:
                self.exchange(ledgers)
            if len(told) < max(len(running or ()), 1):
                return  # one that has told nothing may live
        self.exchange({})
        for gateway in self._gateways:
            gateway.monitoring.tidy()


async def look_for_adapters(seconds: float) -> None:
    """Have every gateway learn what was loaded and unloaded on this one, as far as they answer
    within `seconds`.
    """
    await ask_those_that_answer(_all_replicas(), "look_for_adapters_here", seconds=seconds)


@functools.cache
def _all_replicas() -> DeploymentHandle[Any]:
    me = serve.get_replica_context()
    return serve.get_deployment_handle(me.deployment, me.app_name)
