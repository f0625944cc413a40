"""Tells whether an engine replica that can continue a request may still appear. If none can, the
client is told at once.
"""

import asyncio
import math
from collections.abc import Callable

from cluster.replica.calls.engines import Engines
from cluster.replica.delta_channel.messages import EngineReport

ANSWER_SECONDS = 1.0  # that an answer of Serve's controller is used: many requests ask together


class Stranded:
    """One gateway's."""

    def __init__(self, engines: Engines, reports: Callable[[], list[EngineReport]]) -> None:
        """`reports`: of the replicas that are connected now."""
        self._engines = engines
        self._reports = reports
        self._asking = asyncio.Lock()
        self._asked = -math.inf
        self._num_settled: int | None = None

    async def is_stranded(self, fingerprint: str | None) -> bool:
        """Whether all running replicas have other fingerprints and no other replica is on its way.
        A replica that is being replaced counts as on its way: its replacement may have the
        fingerprint. So may one that has slept since it started, and has none yet.
        """
        if any(report.fingerprint == fingerprint for report in self._reports()):
            return False
        async with self._asking:
            now = asyncio.get_running_loop().time()
            if now > self._asked + ANSWER_SECONDS:
                self._num_settled, self._asked = await self._engines.num_settled(), now
        reports = self._reports()
        is_known = self._num_settled == len(reports)
        return is_known and all(report.fingerprint not in ("", fingerprint) for report in reports)
