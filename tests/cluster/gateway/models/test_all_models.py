"""Gateways of several models, asked as one."""

import pytest

from cluster.gateway.models.all_models import AllModels
from engine.admission.queue_limits import Load, Room
from engine.errors import Overloaded


class One:
    """A gateway that does as told."""

    def __init__(self, name: str, problems: list[str], room: Room | None) -> None:
        self.name = name
        self.problems = problems
        self._room = room

    def check_room(self, more: Load, *, arriving: Load) -> None:
        if self._room is not None and self._room.num_requests < more.num_requests + arriving.num_requests:
            raise Overloaded(f"{self.name} is full", retry_after=self._room.seconds)

    def room(self, arriving: Load) -> Room | None:
        return self._room

    async def health(self) -> list[str]:
        return self.problems

    async def deep_health(self) -> list[str]:
        return self.problems

    async def trace(self) -> dict[str, object]:
        return {"traceEvents": [{"name": f"{self.name} {pid}", "pid": pid} for pid in range(2)]}


def asked(*gateways: One) -> AllModels:
    return AllModels(gateways)  # type: ignore[arg-type]


def test_there_is_room_while_one_model_has_some() -> None:
    full, free = One("full", [], Room(0, 3.0)), One("free", [], Room(2, 5.0))
    one = Load(1, 8)
    for gateways in ((full, free), (free, full)):
        asked(*gateways).check_room(one)
        assert asked(*gateways).room(one) == Room(2, 5.0)
    with pytest.raises(Overloaded, match="full is full"):
        asked(full, full).check_room(one)
    with pytest.raises(Overloaded):
        asked(full, free).check_room(one, arriving=Load(2, 8))
    assert asked(full, One("empty", [], None)).room(one) is None


async def test_requests_can_be_answered_while_one_model_can() -> None:
    well, ill = One("well", [], None), One("ill", ["no engine replica is there"], None)
    assert await asked(well, ill).health() == []
    assert await asked(ill, ill).health() == ["no engine replica is there"] * 2
    assert await asked(well, ill).deep_health() == ["no engine replica is there"]


async def test_a_trace_has_a_process_for_each_replica_of_each_model() -> None:
    events = (await asked(One("a", [], None), One("b", [], None)).trace())["traceEvents"]
    assert [(event["name"], event["pid"]) for event in events] == [("a 0", 0), ("a 1", 1), ("b 0", 2), ("b 1", 3)]
