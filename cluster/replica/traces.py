"""The engine's part of a request's trace: its phases, and its last steps where these are asked for.

Spans are made of the engine's records once the request has ended there; a step costs nothing.
"""

import asyncio
import time
from contextlib import suppress

from cluster.telemetry.tracing import Span, Telemetry, Value, make_tracer
from engine.errors import EngineDead
from engine.frontend.async_engine import AsyncEngine
from engine.outputs import RequestMetrics
from engine.records.timeline import StepRecord
from engine.request import Request

MAX_STEPS = 64  # of a request, that become spans


class Traces:
    """An engine replica's; without a tracer nothing is recorded. Lives in one event loop."""

    def __init__(self, engine: AsyncEngine, replica: str, telemetry: Telemetry) -> None:
        self._engine = engine
        self._replica = replica
        self._tracer = make_tracer(telemetry, replica)
        self._with_steps = telemetry.collect_detailed_traces
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, request: Request) -> "RequestTrace | None":
        """The request has come to this replica."""
        if self._tracer is None:
            return None
        return RequestTrace(request, self._tracer.begin("engine", request.trace_headers))

    def end(self, trace: "RequestTrace | None", metrics: RequestMetrics | None, *, is_finished: bool) -> None:
        """It has ended here, or has left; None for the metrics of one that got no output."""
        if trace is None:
            return
        task = asyncio.create_task(self._end(trace, metrics, is_finished, time.monotonic()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def flush(self, seconds: float) -> None:
        """Send what waits, twice as long at most: of requests whose steps the engine has not told
        by then, all but these.
        """
        if self._tracer is not None:
            await asyncio.sleep(0)  # calls that have just been failed end here, and their traces with them
            if self._tasks:
                _, late = await asyncio.wait(self._tasks, timeout=seconds)
                for task in late:
                    task.cancel()
                await asyncio.gather(*late, return_exceptions=True)
            await asyncio.to_thread(self._tracer.flush, seconds)

    async def _end(
        self, trace: "RequestTrace", metrics: RequestMetrics | None, is_finished: bool, ended: float
    ) -> None:
        attributes: dict[str, Value] = {
            "squadron.replica": self._replica,
            "squadron.attempt": trace.request.resume.attempt,
        }
        try:
            if metrics is not None and trace.span.is_recorded:
                trace.add_phases(metrics, ended)
                if self._with_steps:
                    trace.add_steps(await self._steps(trace.request.id, metrics.arrival_time))
        finally:
            trace.span.end(attributes, error=None if is_finished else "aborted", at=ended)

    async def _steps(self, request_id: str, since: float) -> list[StepRecord]:
        if self._engine.is_dead:
            return []
        with suppress(EngineDead):
            return await self._engine.observer.steps_of(request_id, since, MAX_STEPS)  # between two steps
        return []


class RequestTrace:
    """One attempt's."""

    def __init__(self, request: Request, span: Span) -> None:
        self.request = request
        self.span = span
        self._began = time.monotonic()

    def add_phases(self, metrics: RequestMetrics, ended: float) -> None:
        self.span.child("tokenize", self._began, metrics.arrival_time, {})
        for phase, start, end in metrics.spells:
            self.span.child(phase, start, end, {})
        if metrics.finished_time is None:
            self.span.child(metrics.phase, metrics.phase_start, max(ended, metrics.phase_start), {})

    def add_steps(self, steps: list[StepRecord]) -> None:
        for step in steps:
            own = [index for index, name in enumerate(step.request_ids) if name == self.request.id]
            attributes: dict[str, Value] = {
                "squadron.step": step.step,
                "squadron.epoch": step.epoch,
                "squadron.num_sequences": len(step.request_ids),
                "squadron.num_tokens": int(step.num_tokens[own].sum()),
                "squadron.rank_seconds": [nanoseconds / 1e9 for nanoseconds in step.execute_ns],
            }
            self.span.child("step", step.schedule_start, step.processed, attributes)
