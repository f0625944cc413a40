"""All replicas change, or those that have changed get what they had."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.api.errors import Unavailable
from cluster.gateway.engines.changes import Changes
from cluster.head.store import NoRecord
from cluster.replica.delta_channel.messages import EngineReport
from cluster.weights.asked import AskedWeights, Done
from cluster.weights.record import NONE, Change
from cluster.weights.rest import RUNS, Rest
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

    def write(self, number: int, weights: Weights | None) -> bool:
        if number < self.change.number:
            return False
        version, are_objects = None if weights is None else weights.version, weights is not None and not weights.folder
        self.change = Change(number, None if are_objects else weights, version, are_elsewhere=are_objects)
        return True

    def claim(self, at_least: int) -> int:
        self.last = max(self.last + 1, at_least)
        return self.last


class Engines:
    """Replicas that take any weights but those of a version that one of them refuses, and of those
    the ones of the highest number.
    """

    def __init__(self, *, refused: str = "", loses: int = 0) -> None:
        self.record: Any = Record()
        self.reports = [EngineReport(name, "node", 1, None, STATS) for name in ("one", "two")]
        self.given: dict[str, list[str | None]] = {"one": [], "two": []}
        self.current: dict[str, Weights | None] = {}
        self.refused = refused
        self.loses = loses  # of the next changes, in each of which "two" is lost and replaced

    async def ask_any(self, question: str, what: str, asked: AskedWeights) -> Weights:
        assert (question, what) == ("change", "check")
        return Weights(asked.version, "digest", folder=asked.path, sample="a", tensors=asked.tensors)

    async def ask(self, question: str, what: str) -> list[tuple[int, Weights | None]]:
        assert (question, what) == ("change", "current")
        return [(report.weights_number, self.current.get(report.replica)) for report in self.reports]

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
            if report.weights_number > number:
                answers.append(Done(report.replica, "a later change came first", is_late=True))
                continue
            self.given[report.replica].append(version)
            self.current[report.replica] = weights
            self.reports[place] = replace(report, weights_number=number, weights_version=version)
            answers.append(Done(report.replica))
        return answers

    async def num_running(self) -> int:
        return len(self.reports)

    def replace_two(self) -> None:
        """By one that has the model's own weights."""
        self.reports[1] = replace(self.reports[1], weights_number=0, weights_version=None)
        self.current["two"] = None


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


async def test_one_that_has_no_place_is_not_waited_for() -> None:
    """Serve's deployment is not healthy then, and may never be."""
    told = await asyncio.wait_for(changes_of(Engines()).update(AskedWeights("new", "/new"), "wait"), 10)
    assert told["num_replicas"] == 2


async def test_a_replica_that_starts_later_gets_them() -> None:
    engines = Engines()
    changes, spawned = changes_of(engines), []
    await changes.update(AskedWeights("new", "/new"), "wait")
    changes.look(spawned.append)
    assert spawned == []
    engines.replace_two()
    changes.look(spawned.append)
    await spawned[0]
    assert engines.given["two"] == ["new", "new"]


async def test_another_gateways_later_change_stays() -> None:
    """Which this one does not take back, as it would if a replica could not have the weights."""
    engines = Engines()
    ours, theirs = changes_of(engines), changes_of(engines)
    number = engines.record.claim(1)  # ours
    engines.record.claim = lambda at_least: number
    later = Weights("later", "digest", folder="/later", sample="a")
    await engines.change("change", "update", 7, later, "wait")
    with pytest.raises(Unavailable, match="asked for later"):
        await ours.update(AskedWeights("new", "/new"), "wait")
    assert engines.given == {"one": ["later"], "two": ["later"]}
    assert await theirs._write(7, later) is None and engines.record.change.version == "later"


async def test_a_change_that_was_overtaken_is_not_said_to_be_there() -> None:
    class Overtaken(Engines):
        async def num_running(self) -> int:
            await self.change("change", "update", 9, Weights("later", "digest", folder="/later"), "wait")
            return 3  # one more, which has not reported yet

    with pytest.raises(Unavailable, match="asked for later"):
        await changes_of(Overtaken()).update(AskedWeights("new", "/new"), "wait")


async def test_a_later_change_that_is_written_down_stays_so() -> None:
    engines = Engines()
    engines.record.change = Change(5, Weights("later", "digest", folder="/later"), "later")
    with pytest.raises(Unavailable, match="asked for later"):
        await changes_of(engines).update(AskedWeights("new", "/new"), "wait")
    assert engines.record.change.version == "later"


async def test_objects_are_learned_from_replicas_since_the_gateway_that_was_asked_may_end() -> None:
    engines = Engines()
    objects: Any = {"a": "an ObjectRef"}
    await changes_of(engines).update(AskedWeights("objects", tensors=objects), "wait")
    other, spawned = changes_of(engines), []
    other.look(spawned.append)
    await spawned.pop()
    other.look(spawned.append)
    assert spawned == [], "it knows them"
    engines.replace_two()
    other.look(spawned.append)
    await spawned.pop()
    assert engines.given["two"] == ["objects", "objects"]


async def test_where_one_refuses_the_others_get_the_objects_that_another_gateway_gave_them() -> None:
    engines = Engines(refused="new")
    objects: Any = {"a": "an ObjectRef"}
    await changes_of(engines).update(AskedWeights("objects", tensors=objects), "wait")
    with pytest.raises(Unavailable, match="have not been changed"):
        await changes_of(engines).update(AskedWeights("new", "/new"), "wait")
    assert [given[-1] for given in engines.given.values()] == ["objects", "objects"]
    assert engines.record.change.version == "objects"


class Resting:
    """Replicas that are paused and sleep; none, where the model was scaled to none."""

    def __init__(self, *answers: Done | str) -> None:
        self.record: Any = SimpleNamespace(rest=SimpleNamespace(read=self.read, change=self.change_rest))
        self.rest: Rest | None = RUNS  # None: nobody can write it down
        self.told: list[Any] = []
        self.answers = answers

    def read(self) -> Rest:
        if self.rest is None:
            raise NoRecord("Ray's head does not answer now")
        return self.rest

    def change_rest(self, what: str, *arguments: Any) -> Rest:
        self.rest = self.read().after(what, *arguments)
        return self.rest

    async def change(self, question: str, what: str, *arguments: Any) -> list[Any]:
        assert (question, what) == ("change", "control")
        self.told.append(arguments)
        return list(self.answers)

    async def ask(self, question: str, what: str) -> list[dict[str, bool]]:
        assert (question, what) == ("change", "state")
        return [{"is_paused": True, "is_sleeping": False} for _ in self.answers]


def resting_of(engines: Resting) -> Changes:
    told: Any = engines
    return Changes(told, list, patience=30.0)


async def test_the_next_engine_of_a_model_without_any_is_told_what_the_others_would_have_been() -> None:
    engines = Resting()
    changes = resting_of(engines)
    for call, is_paused, is_sleeping in [
        (("pause", "keep"), True, False),
        (("sleep", 1, "abort"), True, True),
        (("resume",), False, True),
        (("wake_up", None), False, False),
    ]:
        await changes.control(*call)
        assert engines.told[-1] == (engines.rest, *call), "it was written down first"
        assert await changes.state() == {"is_paused": is_paused, "is_sleeping": is_sleeping}


async def test_engines_that_compute_prompts_pause_and_sleep_too() -> None:
    """Also where those that answer cannot, and the other way round."""
    for problem, other in ((None, None), ("it is dead", None), (None, "it is dead")):
        computing, answering = (Resting(Done("one", each)) for each in (other, problem))
        told: Any = answering
        changes = Changes(told, list, 30.0, resting_of(computing))
        with pytest.raises(Unavailable, match="it is dead") if problem or other else nullcontext():
            await changes.control("sleep", 1, "abort")
        assert computing.told == answering.told == [(Rest(1, sleep_level=1), "sleep", 1, "abort")]


async def test_engines_that_compute_prompts_follow_those_that_answer() -> None:
    """Their own number, and those that are late when they can."""
    answering, computing = Engines(), Engines(loses=1)
    computing.record.last = 6
    told: Any = answering
    follows = changes_of(computing)
    changes = Changes(told, lambda: answering.reports, 30.0, follows)
    await changes.update(AskedWeights("new", "/new"), "wait")
    assert computing.given == {"one": ["new"], "two": []}
    assert (computing.record.change.number, answering.record.change.number) == (7, 1)
    spawned: list[Any] = []
    follows.look(spawned.append)
    await spawned.pop()
    assert computing.given["two"] == ["new"]


async def test_what_engines_that_compute_prompts_cannot_have_changes_nothing_for_the_others() -> None:
    answering, computing = Engines(), Engines(refused="new")
    told: Any = answering
    changes = Changes(told, lambda: answering.reports, 30.0, changes_of(computing))
    assert (await changes.update(AskedWeights("new", "/new"), "wait"))["weights_version"] == "new"
    assert answering.given == {"one": ["new"], "two": ["new"]}


async def test_what_engines_say_of_themselves_counts_where_there_are_any() -> None:
    assert await resting_of(Resting(Done("one"))).state() == {"is_paused": True, "is_sleeping": False}


async def test_what_one_could_not_do_is_told() -> None:
    with pytest.raises(
        Unavailable, match=r"Not every engine replica did this: a replica was lost: it ended; it is dead"
    ):
        await resting_of(Resting(Done("one"), "a replica was lost: it ended", Done("two", "it is dead"))).control(
            "resume"
        )


async def test_nothing_is_done_that_cannot_be_written_down() -> None:
    engines = Resting(Done("one"))
    engines.rest = None
    with pytest.raises(Unavailable, match="Ray's head does not answer now"):
        await resting_of(engines).control("pause", "keep")
    assert engines.told == []
