"""What is read of a trainer's requests for its group."""

from typing import Any

import pytest

from cluster.gateway.handle.groups import read_meeting, read_offer
from cluster.weights.groups.messages import Meeting, Offer, Offered
from engine.errors import InvalidRequest

MEETING = {"master_address": "trainer", "master_port": 29500}
NORM = {"dtype": "torch.bfloat16", "shape": [8]}


def test_what_is_given_and_what_is_usual() -> None:
    assert read_meeting(MEETING) == Meeting("weights", "trainer", 29500, "gloo", 300.0)
    given = MEETING | {"group_name": "w", "backend": "nccl", "timeout": 5}
    assert read_meeting(given) == Meeting("w", "trainer", 29500, "nccl", 5.0)
    digest = "0a" * 32
    told = read_offer({"tensors": {"norm": NORM, "head": {"dtype": "float32", "shape": (2, 3), "sha256": digest}}})
    assert told == Offer("weights", {"norm": Offered("bfloat16", (8,)), "head": Offered("float32", (2, 3), digest)})


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"master_address": ""}, "master_address"),
        ({"master_port": "29500"}, "master_port"),
        ({"master_port": 70000}, "master_port"),
        ({"backend": "mpi"}, "backend"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"group_name": "x" * 65}, "group_name"),
    ],
)
def test_meetings_that_are_refused(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_meeting(MEETING | changes)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "tensors",
    [
        None,
        {},
        ["norm"],
        {7: NORM},
        {"norm": [8]},
        {"norm": {"dtype": "bfloat16"}},
        {"norm": NORM | {"shape": [-8]}},
        {"norm": NORM | {"shape": [True]}},
        {"norm": NORM | {"dtype": 8}},
        {"norm": NORM | {"sha256": "short"}},
        {"norm": NORM | {"more": 1}},
    ],
)
def test_offers_that_are_refused(tensors: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_offer({"tensors": tensors})
    assert refused.value.param == "tensors"
