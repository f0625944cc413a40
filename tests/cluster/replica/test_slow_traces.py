"""Traces of an engine whose thread is in a step for long."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.replica import traces as module
from cluster.replica.traces import RequestTrace, Traces
from cluster.telemetry.tracing import Telemetry
from engine.outputs import RequestMetrics
from engine.records.timeline import StepRecord
from engine.request import Request
from engine.sampling_params import SamplingParams


class Tracer:
    """Has the spans that have ended, each with the steps that it was given."""

    is_recorded = True

    def __init__(self) -> None:
        self.ended: list[list[StepRecord]] = []
        self.flushed: list[int] = []
        self._steps: list[StepRecord] = []

    def begin(self, name: str, parent: object) -> "Tracer":
        return self

    def add_steps(self, trace: RequestTrace, steps: list[StepRecord]) -> None:
        self._steps = steps

    def end(self, attributes: object, *, error: str | None = None, at: float | None = None) -> None:
        self.ended.append(self._steps)

    def flush(self, seconds: float) -> None:
        self.flushed.append(len(self.ended))


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> Tracer:
    tracer = Tracer()
    monkeypatch.setattr(module, "make_tracer", lambda telemetry, name: tracer)
    monkeypatch.setattr(RequestTrace, "add_phases", lambda trace, metrics, ended: None)
    monkeypatch.setattr(RequestTrace, "add_steps", lambda trace, steps: tracer.add_steps(trace, steps))
    return tracer


def ended(told: "asyncio.Future[list[StepRecord]]") -> Traces:
    """A request has just ended; its steps will be `told`."""

    async def steps_of(request_id: str, since: float, most: int) -> list[StepRecord]:
        return await told

    engine: Any = SimpleNamespace(is_dead=False, observer=SimpleNamespace(steps_of=steps_of))
    traces = Traces(engine, "one", Telemetry("http://127.0.0.1:1", collect_detailed_traces=True))
    trace = traces.begin(Request("r", [1], SamplingParams()))
    traces.end(trace, RequestMetrics(arrival_time=1.0, phase_start=1.0), is_finished=True)
    return traces


async def test_steps_are_told_once_the_engine_is_between_two(tracer: Tracer, monkeypatch: pytest.MonkeyPatch) -> None:
    told = asyncio.get_running_loop().create_future()
    waited = asyncio.wait_for
    monkeypatch.setattr(module.asyncio, "wait_for", lambda work, seconds: waited(work, 0))  # a step takes longer
    traces = ended(told)
    for _ in range(10):
        await asyncio.sleep(0)
    assert tracer.ended == []
    steps: list[Any] = ["a step"]
    told.set_result(steps)
    await traces.flush(60.0)
    assert tracer.ended == [steps] and tracer.flushed == [1]


async def test_at_the_end_nothing_waits_for_a_step(tracer: Tracer) -> None:
    traces = ended(asyncio.get_running_loop().create_future())
    await traces.flush(0.01)
    assert tracer.ended == [[]] and tracer.flushed == [1], "it is sent without its steps"
