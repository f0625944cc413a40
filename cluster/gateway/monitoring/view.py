"""What a page shows of the engines of one model, second by second."""

import asyncio
import time
from typing import Any

from cluster.gateway.monitoring.monitoring import Reports
from cluster.replica.calls.engines import Engines

FRESH_SECONDS = 0.5  # for which a view serves whoever asks: engines have no more to tell, however many look


class EngineView:
    """One gateway's."""

    def __init__(self, model_name: str, engines: Engines, reports: Reports) -> None:
        """`reports`: of the engine replicas there are."""
        self._model_name = model_name
        self._engines = engines
        self._reports = reports
        self._one_at_a_time = asyncio.Lock()
        self._views: dict[str, dict[str, Any]] = {}  # by replica; of one that does not answer now, the last
        self._asked = float("-inf")

    async def now(self) -> list[dict[str, Any]]:
        """Each replica's report, and in `view` what is in its engine: see `engine.records.view`."""
        async with self._one_at_a_time:
            if time.monotonic() - self._asked > FRESH_SECONDS:
                answers = await self._engines.ask_those_that_answer("view")
                self._views |= {answer["replica"]: answer for answer in answers}
                self._asked = time.monotonic()
        reports = sorted(self._reports(), key=lambda report: report.replica)
        self._views = {each.replica: self._views[each.replica] for each in reports if each.replica in self._views}
        return [
            report.in_short() | {"model": self._model_name, "view": self._views.get(report.replica)}
            for report in reports
        ]
