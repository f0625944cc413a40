"""A trace of several engine replicas is written as their steps come."""

import asyncio
import json
from typing import Any

from cluster.gateway.models.trace import EVENTS_A_PIECE, STEPS_A_PAGE, write_trace
from engine.records.timeline import NUM_STEPS_KEPT, StepRecord
from tests.engine.records.test_timeline import record


class Replicas:
    """Those of one model, which have computed so many steps."""

    def __init__(self, model: str, **num_steps: int) -> None:
        self.model = model
        self.num_steps = num_steps
        self.num_asked = 0

    async def ask(self, question: str, after: dict[str, int], most: int) -> list[tuple[str, list[StepRecord]]]:
        assert question == "steps"
        self.num_asked += 1
        return [(name, self._steps(name, after.get(name, -1) + 1, most)) for name in self.num_steps]

    def _steps(self, name: str, first: int, most: int) -> list[StepRecord]:
        steps = range(first, min(first + most, self.num_steps[name]))
        return [record(step, [f"{self.model} {name}"], [1]) for step in steps]


async def events_of(*models: Replicas) -> list[dict[str, Any]]:
    pieces = [piece async for piece in write_trace([model.ask for model in models])]
    events: list[dict[str, Any]] = json.loads(b"".join(pieces))["traceEvents"]
    return events


async def test_every_replica_of_every_model_is_a_process() -> None:
    first, second = Replicas("a", x=1, y=2 * STEPS_A_PAGE + 1), Replicas("b", x=STEPS_A_PAGE)
    events = await events_of(first, second)
    names = [(event["args"]["name"], event["pid"]) for event in events if event["ph"] == "M" and event["tid"] >= 1000]
    assert names == [("a x/0", 0), ("a y/0", 1), ("b x/0", 2)]
    steps = [event["args"]["step"] for event in events if event["name"] == "decode" and event["pid"] == 1]
    assert steps == list(range(2 * STEPS_A_PAGE + 1))
    assert (first.num_asked, second.num_asked) == (3, 2)


async def test_the_trace_of_an_engine_that_is_faster_than_its_reader_ends() -> None:
    endless = Replicas("a", x=10**6)
    events = await events_of(endless)
    assert len([event for event in events if event["name"] == "decode"]) == NUM_STEPS_KEPT


async def test_a_trace_without_steps_is_one() -> None:
    assert await events_of() == await events_of(Replicas("a", x=0)) == []


async def test_a_step_of_thousands_of_sequences_leaves_the_loop_its_turns() -> None:
    """The gateway passes tokens on meanwhile."""
    steps = [record(0, [f"r{number}" for number in range(4000)], [1] * 4000)]
    num_turns = 0

    async def ask(question: str, after: dict[str, int], most: int) -> list[tuple[str, list[StepRecord]]]:
        return [("x", [] if after else steps)]

    async def count() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    pieces = [piece async for piece in write_trace([ask])]
    counting.cancel()
    num_events = [piece.count(b'"ph":') for piece in pieces]
    assert sum(num_events) == 8000 + 7  # three lines are named, and four slices are of the driver and its ranks
    assert max(num_events) == EVENTS_A_PIECE and num_turns >= len(pieces) - 1
