"""How a replica follows the record once it runs."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.head.store import NoRecord
from cluster.replica.changes import following
from cluster.replica.changes.following import Following, Update
from cluster.weights.asked import Done
from cluster.weights.record import Change
from cluster.weights.rest import RUNS, Rest
from engine.executor import Weights

SECONDS = 120
NEW = Change(3, Weights("new", "digest", folder="/new", sample="a"), "new")


class Resting:
    """Is as it is told, at once."""

    def __init__(self) -> None:
        self.rest = RUNS

    def take(self, rest: Rest) -> None:
        self.rest = rest

    async def until_done(self) -> None:
        return


def record_of(*rests: Rest | Exception, change: Change = NEW) -> Any:
    """What is read of it, in turn, and the last one again and again."""
    told = list(rests)

    def read() -> Rest:
        rest = told.pop(0) if len(told) > 1 else told[0]
        if isinstance(rest, Exception):
            raise rest
        return rest

    return SimpleNamespace(read=lambda: change, rest=SimpleNamespace(read=read))


def following_of(record: Any, update: Update) -> tuple[Following, Resting, SimpleNamespace]:
    """Of a replica that has started with its own weights."""
    resting: Any = Resting()
    condition: Any = SimpleNamespace(name="one", weights_number=0, lack=None)
    start: Any = SimpleNamespace(record=record, change=Change(), rest=RUNS)
    return Following(start, condition, resting, update), resting, condition


async def test_it_goes_on_whatever_goes_wrong_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "LOOK_SECONDS", 0.0)
    record = record_of(
        RUNS,
        RuntimeError("can't start new thread"),
        NoRecord("Ray's head does not answer"),
        RUNS.after("pause", "keep"),
    )

    async def update(*_: Any) -> Done:
        return Done("one")

    follows, resting, _ = following_of(record, update)
    await follows.begin()
    async with asyncio.timeout(SECONDS):
        while resting.rest == RUNS:
            await asyncio.sleep(0)
    follows.close()


async def test_one_that_a_later_change_has_overtaken_lacks_nothing() -> None:
    """A gateway gives it that one while it catches up with the one before."""

    async def update(number: int, *_: Any) -> Done:
        condition.weights_number = number + 1
        return Done("one", "a later change of weights came first", is_late=True)

    record = record_of(RUNS)
    follows, _, condition = following_of(record, update)
    await follows.look(record)
    assert (condition.weights_number, condition.lack) == (4, None)
