"""The waiting line is in order, and a shut door lets only those through who may pass."""

from engine.sampling_params import SamplingParams
from engine.scheduling.waiting_line import WaitingLine
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, make_engine


def line_of(*names: str, n: int = 1) -> WaitingLine:
    engine = make_engine(Knobs())
    for name in names:
        add_request(engine, name, [1, 2], SamplingParams(n=n))
    return engine.scheduler.queues.waiting


def test_a_shut_door_holds_back_those_who_may_not_pass() -> None:
    line = line_of("a", "b", "c")
    lanes = list(line)
    assert [lane.group.request.id for lane in lanes] == ["a", "b", "c"]
    line.is_shut = True
    assert line.first() is None
    line.set_may_pass(lanes[1].group, may_pass=True)
    assert line.first() is lanes[1] and list(line.admissible()) == [lanes[1]]
    assert list(line) == lanes, "everybody keeps the place in the order"
    line.is_shut = False
    assert line.first() is lanes[0]


def test_a_request_counts_once_until_the_last_of_its_lanes_has_left() -> None:
    line = line_of("a", "b", n=3)
    assert len(line) == 6 and line.num_requests == 2
    first, *others = [lane for lane in line if lane.group.request.id == "a"]
    line.remove(first)
    assert line.num_requests == 2
    for lane in others:
        line.remove(lane)
    assert line.num_requests == 1
    line.add(first)
    assert line.first() is first, "in its old place"
