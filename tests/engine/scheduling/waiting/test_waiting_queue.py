"""The waiting queue is in order, and a shut door lets only those through who may pass."""

from engine.sampling_params import SamplingParams
from engine.scheduling.waiting.waiting_queue import WaitingQueue
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, make_engine


def queue_of(*names: str, n: int = 1) -> WaitingQueue:
    engine = make_engine(Knobs())
    for name in names:
        add_request(engine, name, [1, 2], SamplingParams(n=n))
    return engine.scheduler.queues.waiting


def test_a_shut_door_holds_back_those_who_may_not_pass() -> None:
    queue = queue_of("a", "b", "c")
    lanes = list(queue)
    assert [lane.group.request.id for lane in lanes] == ["a", "b", "c"]
    queue.is_shut = True
    assert queue.first() is None
    queue.set_may_pass(lanes[1].group, may_pass=True)
    assert queue.first() is lanes[1] and list(queue.admissible()) == [lanes[1]]
    assert list(queue) == lanes, "everybody keeps the place in the order"
    queue.is_shut = False
    assert queue.first() is lanes[0]


def test_a_request_counts_once_until_the_last_of_its_lanes_has_left() -> None:
    queue = queue_of("a", "b", n=3)
    assert len(queue) == 6 and queue.counted.num_requests == 2
    first, *others = [lane for lane in queue if lane.group.request.id == "a"]
    queue.remove(first)
    assert queue.counted.num_requests == 2
    for lane in others:
        queue.remove(lane)
    assert queue.counted.num_requests == 1
    queue.add(first)
    assert queue.first() is first, "in its old place"
