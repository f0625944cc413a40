"""What a replica has its engine do about pauses and sleep."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from cluster.replica.changes.resting import Resting
from cluster.weights.rest import RUNS, Rest
from engine.errors import EngineDead


class Controls:
    """Writes down what it is asked for, which is done when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.open: list[Future[None]] = []

    def __getattr__(self, what: str) -> Any:
        def ask(*arguments: Any, awake: Callable[[], None] | None = None) -> "Future[None]":
            assert (awake is not None) == (what == "wake_up")
            self.asked.append((what, *arguments))
            self.open.append(Future())
            return self.open[-1]

        return ask

    def end(self) -> None:
        for each in self.open:
            each.set_result(None)
        self.open.clear()


@pytest.fixture
def controls() -> Controls:
    return Controls()


@pytest.fixture
def resting(controls: Controls) -> Resting:
    engine: Any = controls
    return Resting(engine, lambda: None)


async def told(resting: Resting, controls: Controls, rest: Rest, *call: Any) -> str | None:
    """What it answers once its engine has done what it was asked for."""
    control = asyncio.create_task(resting.control(rest, *call))
    await asyncio.sleep(0)  # the engine has been asked, and is waited for
    assert not control.done() or not controls.open
    controls.end()
    return await control


async def test_the_next_call_is_made_as_it_is(resting: Resting, controls: Controls) -> None:
    rest = RUNS.after("pause", "keep")
    assert await told(resting, controls, rest, "pause", "keep") is None
    assert await told(resting, controls, rest.after("resume"), "resume") is None
    assert controls.asked == [("pause", "keep"), ("resume",)]


async def test_one_that_has_missed_a_call_takes_the_state(resting: Resting, controls: Controls) -> None:
    rest = RUNS.after("pause", "keep").after("sleep", 2, "abort")
    assert await told(resting, controls, rest, "sleep", 2, "abort") is None
    assert controls.asked == [("pause", "keep"), ("sleep", 2, "abort")]


async def test_what_the_record_has_said_before_is_not_done_twice(resting: Resting, controls: Controls) -> None:
    rest = RUNS.after("pause", "keep")
    resting.take(rest)
    resting.take(rest)
    resting.take(RUNS)
    assert await told(resting, controls, rest, "pause", "keep") is None
    assert controls.asked == [("pause", "keep"), ("wake_up", None)]


async def test_a_late_call_changes_nothing(resting: Resting, controls: Controls) -> None:
    first = RUNS.after("sleep", 1, "abort")
    resting.take(first.after("wake_up", None))
    controls.asked.clear()
    assert await told(resting, controls, first, "sleep", 1, "abort") is None
    assert controls.asked == []


async def test_an_engine_that_cannot_is_told(resting: Resting, controls: Controls) -> None:
    resting.take(RUNS.after("pause", "keep"))
    controls.open.pop(0).set_exception(EngineDead("its workers are gone"))
    controls.end()
    assert await resting.until_done() == "its workers are gone"
