"""A gateway's part in the figures of the application: its own counts, and the figures that it got
from engine replicas and other gateways.
"""

import secrets
import time
from collections.abc import Callable

from cluster.gateway.monitoring.engine_figures import BOUNDS, gauges_of, totals_of
from cluster.metrics.counters import Counters
from cluster.metrics.figures import Figures, without
from cluster.metrics.ledger import Ledger, Silences
from cluster.metrics.text import FigureFamilies, render
from cluster.replica.delta_channel.messages import EngineReport
from cluster.version import VERSION

Reports = Callable[[], list[EngineReport]]


class Monitoring:
    """Lives in one event loop."""

    def __init__(
        self,
        model_name: str,
        counters: Counters,
        reports: Reports,
        all_reports: Reports,
        *,
        counts_process: bool = True,
        starts_for_requests: bool = False,
    ) -> None:
        """`counters`: what the gateway counts itself. `reports`: of the engine replicas there are;
        `all_reports`: also the last ones of those that are gone. `counts_process`: also what is of
        the whole process; of several in one process, one does. `starts_for_requests`: see
        `Gateway`.
        """
        self._name = _new_name()
        self._counted_before: Figures = {}  # under other names
        self._told: Figures = {}  # the last figures, under all names
        self.model_name = model_name
        self._ledger = Ledger()
        self._silences = Silences()
        self._counters = counters
        self._reports = reports
        self._counts_process = counts_process
        self._starts_for_requests = starts_for_requests
        self._all_reports = all_reports

    def exchange(self, other: Ledger) -> Ledger:
        """Add another gateway's figures; returns this gateway's."""
        self._ledger.learn(other)
        for report in self._all_reports():
            self._ledger.note(report.replica, report.totals.made, totals_of(report))
        if self._ledger.has_forgotten(self._name):  # others have not heard of this gateway for very long
            self._name, self._counted_before = _new_name(), self._told
        self._told = self._counters.figures()
        if self._counts_process:
            self._told["squadron:gateway_cpu_seconds", ()] = time.process_time()
        self._ledger.note(self._name, time.monotonic(), without(self._told, self._counted_before))
        return self._ledger

    def tidy(self) -> None:
        """Merge what is gone for good. To be called when every other gateway has just told its
        figures.
        """
        self._silences.tidy(self._ledger, time.monotonic())

    def text(self) -> bytes:
        """All figures as Prometheus reads them."""
        return render(self.figures())

    def figures(self) -> FigureFamilies:
        """All figures that this gateway knows."""
        self.exchange(Ledger())
        gauges = gauges_of(self._reports())
        gauges["squadron:build_info", (VERSION,)] = 1
        gauges["squadron:starts_for_requests", ()] = float(self._starts_for_requests)
        return FigureFamilies(self._ledger.total() | gauges, self._counters.bounds | BOUNDS, self.model_name)


def _new_name() -> str:
    return f"gateway {secrets.token_hex(8)}"
