"""Shuts the replicas of a running application down in order."""

import contextlib
from dataclasses import dataclass
from typing import Any, Self

from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from cluster import owner
from cluster.launch.app import APP_NAME
from cluster.launch.config.engines import ENGINES, PREFILL_ENGINES
from cluster.serve_status import deployments_of

JOIN_SECONDS = 30.0  # for gateways to take requests of a model whose engine runs
DRAIN_SECONDS = 20.0  # for running requests, at the end
STOP_SECONDS = 5.0  # for engines and their workers


@dataclass(frozen=True, slots=True)
class Replicas:
    """Handles of the application's deployments, by which it can be ended in order even when Ray's
    GCS has died.
    """

    gateways: DeploymentHandle[Any]
    engines: tuple[DeploymentHandle[Any], ...]  # of each model, and those that compute prompts

    @classmethod
    def of(cls, gateways: DeploymentHandle[Any]) -> Self:
        kinds = (ENGINES, PREFILL_ENGINES)
        return cls(gateways, tuple(each for kind in kinds for each in deployments_of(APP_NAME, kind)))

    def join(self) -> None:
        """Wait until every gateway takes requests of every model, whose engines run."""
        with contextlib.suppress(TimeoutError, RayServeException):
            self.gateways.broadcast("wait_for_all_models").results(timeout_s=JOIN_SECONDS, return_exceptions=True)

    def meet(self) -> None:
        """Find the replicas, while Ray's GCS can still be asked."""
        calls = [self.gateways.broadcast("why_here", ""), *(engines.broadcast("stats") for engines in self.engines)]
        for call in calls:
            # A replica that has just died will be replaced by one that is not known here.
            with contextlib.suppress(TimeoutError, RayServeException):
                call.results(timeout_s=STOP_SECONDS, return_exceptions=True)

    def drain(self) -> None:
        """Have the gateways finish running requests and reject new ones, until the proxies do
        so.
        """
        response = self.gateways.broadcast("drain", owner.this_process(), DRAIN_SECONDS)
        response.results(timeout_s=DRAIN_SECONDS + 2, return_exceptions=True)

    def stop(self) -> None:
        """Have the engines end their workers."""
        for call in [engines.broadcast("stop", owner.this_process()) for engines in self.engines]:
            call.results(timeout_s=STOP_SECONDS, return_exceptions=True)
