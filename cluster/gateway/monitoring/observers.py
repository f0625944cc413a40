"""The monitoring of a gateway, as one value."""

import asyncio
from typing import Self

from cluster.gateway.monitoring.monitoring import Monitoring, Reports
from cluster.gateway.monitoring.request_figures import UNBOUNDED, RequestFigures
from cluster.gateway.monitoring.view import EngineView
from cluster.gateway.monitoring.watch import Watcher
from cluster.replica.calls.engines import Engines
from cluster.telemetry.tracing import Telemetry, make_tracer

FLUSH_SECONDS = 1.0  # for spans that wait, at the end


class Observers:
    """One gateway's: spans and log lines (`watcher`), what it counts of its requests (`figures`),
    and its part in the figures of the whole application (`monitoring`).
    """

    def __init__(
        self, watcher: Watcher | None = None, max_model_len: int = UNBOUNDED, *, counts_process: bool = True
    ) -> None:
        """Without a `watcher` there are no spans and no log lines. `counts_process`: see
        `Monitoring`.
        """
        self._counts_process = counts_process
        self.watcher = watcher or Watcher()
        self.figures = RequestFigures(max_model_len)

    @classmethod
    def configured(
        cls, model_name: str, max_model_len: int, telemetry: Telemetry, process: str, *, counts_process: bool
    ) -> Self:
        """`process`: see `make_tracer`; `counts_process`: see `Monitoring`."""
        tracer = make_tracer(telemetry, process)
        watcher = Watcher(model_name, tracer, logs_requests=telemetry.log_requests)
        return cls(watcher, max_model_len, counts_process=counts_process)

    def monitoring(self, reports: Reports, all_reports: Reports, *, starts_for_requests: bool) -> Monitoring:
        """See `Monitoring`."""
        return Monitoring(
            self.watcher.model_name,
            self.figures.counters,
            reports,
            all_reports,
            counts_process=self._counts_process,
            starts_for_requests=starts_for_requests,
        )

    def view(self, engines: Engines, reports: Reports) -> EngineView:
        """`reports`: see `EngineView`."""
        return EngineView(self.watcher.model_name, engines, reports)

    async def flush(self) -> None:
        """Send the waiting spans; takes FLUSH_SECONDS at most."""
        await asyncio.to_thread(self.watcher.flush, FLUSH_SECONDS)
