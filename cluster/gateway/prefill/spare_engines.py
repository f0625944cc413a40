"""Prefill engines behind a Serve handle."""

from typing import Any

from ray.serve.handle import DeploymentHandle

from cluster.gateway.engines.serve_engines import ServeEngines
from cluster.gateway.options import ModelOptions
from cluster.replica.calls.engines import PrefillEngines

# Of a model: those that answer, and those that compute prompts for them.
ModelEngines = tuple[DeploymentHandle[Any], DeploymentHandle[Any] | None]


class SpareEngines(ServeEngines):
    """Those that a gateway can do without."""

    async def leave(self) -> None:
        return


def prefill_engines(handle: DeploymentHandle[Any] | None, run: str, own: ModelOptions) -> PrefillEngines | None:
    """`run`: of the application; `own`: of the model."""
    if handle is None or own.prefill_min_tokens is None:
        return None
    return PrefillEngines(SpareEngines(handle, run, own.source), own.prefill_min_tokens, own.prefill_is_shared)
