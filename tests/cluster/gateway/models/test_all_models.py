"""Gateways of several models, asked as one."""

import json

import pytest

from cluster.api.errors import ApiError, Unavailable
from cluster.api.service import Arriving
from cluster.gateway.models.all_models import MOST_SEEN, AllModels
from engine.admission.queue_limits import Load, Room
from engine.errors import Overloaded
from engine.records.timeline import StepRecord
from engine.request import Share
from tests.engine.records.test_timeline import record


class View:
    """Of a gateway's replicas."""

    def __init__(self, name: str) -> None:
        self._replicas = [f"{name} {number}" for number in range(2)]

    def replicas(self) -> list[str]:
        return self._replicas

    async def now(self, seen: list[str]) -> list[tuple[str, bool]]:
        return [(name, name in seen) for name in self._replicas]


class One:
    """A gateway that does as told."""

    def __init__(self, name: str, problems: list[str], room: Room | None) -> None:
        self.name = name
        self.problems = problems
        self.view = View(name)
        self._room = room

    def check_room(self, more: Load, seconds: float | None, *, share: Share, arriving: Arriving) -> None:
        if seconds is not None and self._room is not None and self._room.seconds > seconds:
            raise Overloaded(f"{self.name} takes longer")
        if share.key is not None:
            raise ApiError(429, f"{self.name} is full of {share.key}", code="rate_limit_exceeded")
        if self._room is not None and self._room.num_requests < more.num_seqs + arriving.load.num_seqs:
            raise Overloaded(f"{self.name} is full", retry_after=self._room.seconds)

    def room(self, arriving: Load, *, by_key: bool = False) -> Room | None:
        return self._room

    async def health(self) -> list[str]:
        return self.problems

    async def deep_health(self) -> list[str]:
        return self.problems

    async def engines(self) -> list[str]:
        return [] if self.problems else [self.name]

    async def ask(self, question: str, after: dict[str, int], most: int) -> list[tuple[str, list[StepRecord]]]:
        assert question == "steps"
        if self.problems:
            raise Unavailable(self.problems[0], code="not_ready", retry_after=1.0)
        steps = [record(step, [self.name], [1]) for step in range(3)]
        return [(replica, steps[after.get(replica, -1) + 1 :][:most]) for replica in "xy"]

    def held(self) -> dict[str, int]:
        return {"requests": len(self.name), "waiting": len(self.problems)}

    async def worker_pids(self) -> dict[str, list[int]]:
        return {f"{self.name} 0": [1, 2]}


def asked(*gateways: One) -> AllModels:
    return AllModels(gateways)  # type: ignore[arg-type]


def test_there_is_room_while_one_model_has_some() -> None:
    full, free = One("full", [], Room(0, 3.0, "max_queue_seconds")), One("free", [], Room(2, 5.0))
    one = Load(1, 8)
    for gateways in ((full, free), (free, full)):
        asked(*gateways).check_room(one)
        assert asked(*gateways).room(one) == Room(2, 5.0, "max_queue_seconds")
    with pytest.raises(Overloaded, match="full is full"):
        asked(full, full).check_room(one)
    with pytest.raises(Overloaded):
        asked(full, free).check_room(one, arriving=Arriving(Load(2, 8)))
    with pytest.raises(ApiError, match="free is full of a"):
        asked(full, free).check_room(one, share=Share("a"))
    asked(full, free).check_room(one, 5.0)
    with pytest.raises(Overloaded, match="free takes longer"):
        asked(full, free).check_room(one, 4.0)
    assert asked(full, One("empty", [], None)).room(one) is None


def test_what_a_gateway_holds_is_of_all_models() -> None:
    well, ill = One("well", [], None), One("bad", ["no engine replica is there"], None)
    assert asked(well, ill).held() == {"requests": 7, "waiting": 1}
    assert asked(One("", [], None)).held() == {"requests": 0, "waiting": 0}


async def test_requests_can_be_answered_while_one_model_can() -> None:
    well, ill = One("well", [], None), One("ill", ["no engine replica is there"], None)
    assert await asked(well, ill).health() == []
    assert await asked(ill, ill).health() == ["no engine replica is there"] * 2
    assert await asked(well, ill).deep_health() == ["no engine replica is there"]


async def test_a_model_that_has_had_no_engine_is_not_deeply_well() -> None:
    one = AllModels([One("there", [], None)], names=["late"])  # type: ignore[list-item]
    assert await one.health() == []
    assert await one.deep_health() == ["no engine of late has been there yet"]


async def names_of(*gateways: One) -> set[str]:
    events = json.loads(b"".join([piece async for piece in asked(*gateways).trace()]))["traceEvents"]
    return {event["args"]["name"] for event in events if event["ph"] == "M" and event["tid"] >= 1000}


async def test_a_trace_is_of_the_models_that_have_an_engine() -> None:
    well, ill = One("well", [], None), One("ill", ["no engine replica is there"], None)
    assert await names_of(well, One("other", [], None)) == {"well/0", "other/0"}
    assert await names_of(ill, well) == {"well/0"}
    with pytest.raises(Unavailable, match="no engine replica is there"):
        await names_of(ill, ill)


async def test_engines_of_all_models_are_seen() -> None:
    both = asked(One("a", [], None), One("b", [], None))
    names = ["a 0", "a 1", "b 0", "b 1"]
    for chosen, seen in ((None, names[:MOST_SEEN]), ("b 0", ["b 0"]), ("gone", names[:MOST_SEEN])):
        assert await both.view(chosen) == [(name, name in seen) for name in names]
    assert await both.worker_pids() == {"a 0": [1, 2], "b 0": [1, 2]}
