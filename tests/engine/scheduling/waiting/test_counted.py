"""What waits is counted by request, and what comes back with a token apart from what is new."""

from engine.sampling_params import SamplingParams
from engine.scheduling.waiting.counted import Counted
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, check_engine, finish, make_engine


def test_a_request_counts_once_until_the_last_of_its_lanes_has_left() -> None:
    engine, counted = make_engine(Knobs()), Counted()
    add_request(engine, "a", [1, 2], SamplingParams(n=3))
    lanes = list(engine.scheduler.queues.waiting)
    for lane in lanes:
        counted.add(lane)
    assert (counted.num_requests, counted.num_places, counted.num_tokens) == (1, 3, 2)
    for lane in lanes[1:]:
        counted.remove(lane)
    assert (counted.num_requests, counted.num_places, counted.num_tokens) == (1, 1, 2)
    counted.remove(lanes[0])
    assert (counted.num_requests, counted.num_places, counted.num_tokens) == (0, 0, 0)


def test_what_lost_its_place_returns_unless_it_had_no_token_yet() -> None:
    engine = make_engine(Knobs())
    add_request(engine, "begun", [1] * 20, SamplingParams(n=2, max_tokens=30, ignore_eos=True))
    while not engine.stats().num_generation_tokens:
        engine.step()
    add_request(engine, "new", [2] * 10, SamplingParams(max_tokens=5))
    stats = engine.stats()
    assert (stats.num_seqs_waiting, stats.num_seqs_returning, stats.num_returning_tokens) == (1, 0, 0)
    engine.executor.crash_at = {engine.scheduler.step}
    while not engine.stats().num_recoveries:
        engine.step()
    stats = engine.stats()
    assert (stats.num_seqs_running, stats.num_seqs_waiting) == (0, 3)
    assert (stats.num_seqs_returning, stats.num_returning_tokens) == (2, 20)
    check_engine(engine)
    finish(engine)
    stats = engine.stats()
    assert (stats.num_seqs_returning, stats.num_returning_tokens) == (0, 0)
