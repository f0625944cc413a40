"""All replicas change, or those that have changed get what they had."""

from dataclasses import replace
from typing import Any

import pytest

from cluster.api.errors import Unavailable
from cluster.gateway.engines.changes import Changes
from cluster.replica.delta_channel.messages import EngineReport
from cluster.weights.asked import AskedWeights, Done
from cluster.weights.record import NONE, Change
from engine.executor import Weights
from engine.records.stats import EngineStats

STATS = EngineStats(**dict.fromkeys(EngineStats.__slots__, 0))


class Record:
    """Where the last change is written down."""

    def __init__(self) -> None:
        self.change = NONE
        self.last = 0

    def read(self) -> Change:
        return self.change

    def write(self, number: int, weights: Weights | None) -> None:
        self.change = Change(number, weights, None if weights is None else weights.version)

    def claim(self, at_least: int) -> int:
        self.last = max(self.last + 1, at_least)
        return self.last


class Engines:
    """Replicas that take any weights but those of a version that one of them refuses."""

    def __init__(self, *, refused: str = "", loses: int = 0) -> None:
        self.record: Any = Record()
        self.reports = [EngineReport(name, "node", 1, None, STATS) for name in ("one", "two")]
        self.given: dict[str, list[str | None]] = {"one": [], "two": []}
        self.refused = refused
        self.loses = loses  # of the next changes, in each of which "two" is lost and replaced

    async def ask_any(self, question: str, what: str, asked: AskedWeights) -> Weights:
        assert (question, what) == ("change", "check")
        return Weights(asked.version, "digest", folder=asked.path, sample="a")

    async def change(self, question: str, what: str, number: int, weights: Weights | None, mode: str) -> list[Any]:
        assert (question, what) == ("change", "update")
        answers: list[Any] = []
        version = None if weights is None else weights.version
        for place, report in enumerate(self.reports):
            if report.replica == "two" and self.loses:
                self.loses -= 1
                self.reports[place] = replace(report, weights_number=0)
                answers.append("a replica was lost: it ended")
                continue
            if report.replica == "two" and version == self.refused:
                answers.append(Done("two", "it has no such folder"))
                continue
            self.given[report.replica].append(version)
            self.reports[place] = replace(report, weights_number=number, weights_version=version)
            answers.append(Done(report.replica))
        return answers

    async def num_settled(self) -> int:
        return len(self.reports)


def changes_of(engines: Engines) -> Changes:
    told: Any = engines
    return Changes(told, lambda: engines.reports, patience=30.0)


async def test_all_have_them() -> None:
    engines = Engines()
    told = await changes_of(engines).update(AskedWeights("", "/new"), "wait")
    assert (told["weights_version"], told["num_replicas"]) == ("1", 2)
    assert engines.given == {"one": ["1"], "two": ["1"]}
    assert engines.record.change.version == "1"


async def test_where_one_refuses_the_others_get_what_they_had() -> None:
    engines = Engines(refused="new")
    changes = changes_of(engines)
    for before in (None, "before"):
        if before is not None:
            await changes.update(AskedWeights(before, "/before"), "wait")
        with pytest.raises(Unavailable, match="have not been changed: it has no such folder"):
            await changes.update(AskedWeights("new", "/new"), "wait")
        assert [given[-1] for given in engines.given.values()] == [before, before]
        assert engines.record.change.version == before
        assert len({report.weights_number for report in engines.reports}) == 1


async def test_a_replica_that_takes_a_lost_ones_place_gets_them_before_the_answer() -> None:
    engines = Engines(loses=2)
    told = await changes_of(engines).update(AskedWeights("new", "/new"), "wait")
    assert told["num_replicas"] == 2
    assert engines.given["two"] == ["new"]


async def test_a_replica_that_starts_later_gets_them() -> None:
    engines = Engines()
    changes, spawned = changes_of(engines), []
    await changes.update(AskedWeights("new", "/new"), "wait")
    changes.look(spawned.append)
    assert spawned == []
    engines.reports[1] = replace(engines.reports[1], weights_number=0)
    changes.look(spawned.append)
    await spawned[0]
    assert engines.given["two"] == ["new", "new"]
