"""Figures through `ray.util.metrics`, for monitoring that scrapes Ray's own agents.

Ray adds `ray_` to names and has no colons in them: `vllm:generation_tokens_total` is
`ray_vllm_generation_tokens_total`, as of vLLM on Ray. All are gauges to Ray, which would count by
itself what it calls a counter; their values are those of /metrics. Ray's agents ask nobody who they
are: what is told by API keys' names is on /metrics alone.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable

import ray
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from ray.exceptions import RayError
from ray.util.metrics import Gauge

from cluster.metrics.catalog import OF_A_MOMENT, OF_KEYS
from engine.errors import going_on

EXPORT_SECONDS = 10.0  # as often as Ray's processes report to their agents
COLLECTS = "RAY_enable_metrics_collection"  # Ray's own switch
_logger = logging.getLogger("ray.serve")
_Labels = tuple[tuple[str, str], ...]


async def export_figures(figures: Callable[[], Awaitable[Collector]]) -> None:
    """Export the result of `figures` every ten seconds until cancelled; returns at once where Ray
    has no agent that would take it.
    """
    if not await asyncio.to_thread(has_agent):
        return
    export = RayExport()
    while True:
        await asyncio.sleep(EXPORT_SECONDS)
        with going_on(_logger, "telling Ray's agent figures"):
            try:
                export.write((await figures()).collect())
            except RayError as error:  # without the GCS other gateways may not be found
                _logger.warning(f"No figures for Ray's agent: {error}")


def has_agent() -> bool:
    """Whether Ray has an agent on this node, which collects the figures that processes record."""
    if os.environ.get(COLLECTS, "1").lower() in ("0", "false"):
        return False
    try:
        own = ray.get_runtime_context().get_node_id()
        return any(node["NodeID"] == own and node["MetricsExportPort"] > 0 for node in ray.nodes())
    except RayError:  # the GCS does not answer
        return False


class RayExport:
    """Of one process, which keeps all series that it ever had; `Counters` bounds their number."""

    def __init__(self) -> None:
        self._gauges: dict[str, Gauge] = {}
        self._written: set[tuple[str, _Labels]] = set()

    def write(self, families: Iterable[Family]) -> None:
        """Leave the families' samples with Ray, which passes them on by itself."""
        written = set()
        for family in families:
            if family.name in OF_A_MOMENT | OF_KEYS:
                continue
            for sample in family.samples:
                self._set(sample.name, sample.labels, sample.value, family.documentation)
                written.add((sample.name, tuple(sample.labels.items())))
        for name, labels in self._written - written:  # of an engine that is gone
            self._set(name, dict(labels), 0.0, "")
        self._written = written

    def _set(self, name: str, labels: dict[str, str], value: float, about: str) -> None:
        gauge = self._gauges.get(name)
        if gauge is None:
            gauge = self._gauges[name] = Gauge(name.replace(":", "_"), about, tuple(labels))
        gauge.set(value, labels)
