"""What a replica does about changes that passed it by while it started."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.head.store import NoRecord
from cluster.replica.changes.changes import Changes
from cluster.weights.record import NONE, Change
from cluster.weights.rest import RUNS, Rest
from engine.errors import InvalidConfig
from engine.executor import Weights

NEW = Weights("new", "digest", folder="/new", sample="a")


class Engine:
    """Takes any weights, unless they are `wrong`, and pauses."""

    def __init__(self, wrong: str | None = None) -> None:
        self.controls = self
        self.wrong = wrong
        self.given: list[Weights | None] = []
        self.paused: list[str] = []

    def pause(self, mode: str) -> "Future[None]":
        self.paused.append(mode)
        return ended()

    def wake_up(self, tags: Any, awake: Any) -> "Future[None]":
        return ended()

    def update_weights(self, weights: Weights | None, mode: str, changed: Any) -> "Future[None]":
        done: Future[None] = Future()
        if self.wrong is None:
            self.given.append(weights)
            done.set_result(None)
        else:
            done.set_exception(InvalidConfig(self.wrong))
        return done


def ended() -> "Future[None]":
    done: Future[None] = Future()
    done.set_result(None)
    return done


class Record:
    """What the head says, if it does."""

    def __init__(self, change: Change | None, rest: Rest = RUNS) -> None:
        self.change = change
        self.rest = SimpleNamespace(read=lambda: rest)

    def read(self) -> Change:
        if self.change is None:
            raise NoRecord("Ray's head does not answer now")
        return self.change


async def begun(engine: Engine, record: Record, change: Change = NONE) -> SimpleNamespace:
    """Condition of a replica that started with `change`, and would run now."""
    condition = SimpleNamespace(name="one", weights_number=0, lack=None)
    start: Any = SimpleNamespace(record=record, change=change, rest=RUNS)
    told: Any = engine
    changes = Changes(told, condition, lambda: None, start)  # type: ignore[arg-type]
    await changes.begin()
    changes.close()
    return condition


async def test_a_change_while_it_started_is_made_before_it_runs() -> None:
    engine = Engine()
    condition = await begun(engine, Record(Change(3, NEW, "new")))
    assert (condition.weights_number, condition.lack, engine.given) == (3, None, [NEW])


async def test_a_pause_while_it_started_is_made_before_it_runs() -> None:
    engine = Engine()
    await begun(engine, Record(NONE, RUNS.after("pause", "keep")))
    assert engine.paused == ["keep"]


async def test_what_it_started_with_is_not_read_twice() -> None:
    engine = Engine()
    condition = await begun(engine, Record(Change(3, NEW, "new")), Change(3, NEW, "new"))
    assert (condition.weights_number, engine.given) == (3, [])


@pytest.mark.parametrize(
    ("engine", "last", "words"),
    [
        (Engine(), Change(3, None, "objects", are_elsewhere=True), "it waits for the weights of version 'objects'"),
        (Engine("no folder"), Change(3, NEW, "new"), "it waits for the weights of version 'new': no folder"),
    ],
)
async def test_it_takes_no_requests_without_them(engine: Engine, last: Change, words: str) -> None:
    condition = await begun(engine, Record(last))
    assert (condition.weights_number, condition.lack, engine.given) == (0, words, [])


async def test_a_head_that_does_not_answer_keeps_nobody_from_starting() -> None:
    condition = await begun(Engine(), Record(None))
    assert (condition.weights_number, condition.lack) == (0, None)
