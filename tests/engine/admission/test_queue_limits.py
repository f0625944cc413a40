"""What may wait: as configured, or sized from the cache, with the free places on top."""

import math
from dataclasses import replace

import pytest

from engine.admission.queue_limits import NOTHING, Arriving, Load, QueueLimits, check_room, load_of
from engine.config import EngineConfig
from engine.errors import Overloaded
from engine.records.stats import EngineStats
from engine.request import Request
from engine.sampling_params import SamplingParams
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import DEMO, Knobs, finish, make_engine

TWENTY = Load(1, 20)
STATS = replace(
    EngineStats(**dict.fromkeys(EngineStats.__slots__, 0)),
    num_seqs_running=6,
    num_gpu_blocks=100,
    num_free_gpu_blocks=30,
)


def limits(**options: int) -> QueueLimits:
    return QueueLimits.of(EngineConfig.create(model=DEMO, max_num_seqs=8, **options), STATS)


def test_by_default_as_much_may_wait_as_may_run() -> None:
    assert limits().max_waiting == Load(8, 1600)
    assert limits(max_num_queued_reqs=3, max_num_queued_tokens=70).max_waiting == Load(3, 70)
    assert limits(max_num_queued_reqs=0, max_num_queued_tokens=0).max_waiting == Load(math.inf, math.inf)


def test_what_is_free_is_there_for_those_that_wait_unless_the_cache_is_too_small_for_them() -> None:
    assert limits().free(STATS) == Load(2, 480)
    assert limits().free(replace(STATS, num_requests_waiting=1, num_waiting_tokens=480)) == Load(2, 480)
    assert limits().free(replace(STATS, num_requests_waiting=1, num_waiting_tokens=481)) == NOTHING
    assert limits().free(replace(STATS, num_requests_swapped=1)) == NOTHING


def test_each_choice_takes_a_place() -> None:
    engine = make_engine(Knobs(num_blocks=200, overrides={"max_num_seqs": 8}))
    for number in range(2):
        add_request(engine, str(number), [number + 1] * 8, SamplingParams(n=4, seed=1, max_tokens=9, ignore_eos=True))
    at_first = engine.stats()
    assert (at_first.num_requests_waiting, at_first.num_seqs_waiting) == (2, 8)
    while engine.stats().num_seqs_running < 8:
        engine.step()
    stats, its = engine.stats(), QueueLimits.of(engine.config, at_first)
    assert (stats.num_requests_running, stats.num_seqs_waiting) == (2, 0)
    assert (stats.num_seqs_beginning, stats.num_beginning_tokens) == (0, 0)
    assert its.free(stats).num_seqs == 0
    arriving, many = Arriving(), Request("r", [1] * 20, SamplingParams(n=5))
    assert load_of(many, 7) == Load(5, 7)
    arriving.enter(its, stats, load_of(many))
    with pytest.raises(Overloaded, match="5 sequences wait already"):
        arriving.enter(its, stats, Load(4, 20))
    arriving.enter(its, stats, Load(3, 20))
    finish(engine)
    assert engine.stats().num_seqs_finished == 8


def test_choices_whose_prompt_is_being_computed_hold_nobody_up() -> None:
    stats = replace(STATS, num_seqs_running=1, num_seqs_waiting=4)
    assert limits().free(stats).num_seqs == 7
    Arriving().enter(limits(max_num_queued_reqs=1), stats, Load(4, 20))
    with pytest.raises(Overloaded):
        Arriving().enter(limits(max_num_queued_reqs=1), stats, Load(5, 20))


def test_free_cache_is_no_room_for_those_that_find_no_place() -> None:
    its, arriving = limits(max_num_queued_reqs=0, max_num_queued_tokens=50), Arriving()
    for _ in range(4):  # two find places, and two wait
        arriving.enter(its, STATS, TWENTY)
    with pytest.raises(Overloaded, match="requests of 80 tokens wait already"):
        arriving.enter(its, STATS, TWENTY)
    busy, arriving = replace(STATS, num_seqs_running=8), Arriving()
    for _ in range(2):
        arriving.enter(its, busy, TWENTY)
    with pytest.raises(Overloaded, match="requests of 40 tokens wait already"):
        arriving.enter(its, busy, TWENTY)


def test_what_returns_leaves_the_queue_as_it_was() -> None:
    """After a loss everything that ran waits; new requests find the queue's room."""
    full = {"num_seqs_running": 0, "num_free_gpu_blocks": 100}
    lost = {"num_seqs_waiting": 8, "num_waiting_tokens": 1500, "num_seqs_returning": 8, "num_returning_tokens": 1500}
    stats, its = replace(STATS, **full, **lost), limits(max_num_queued_reqs=2, max_num_queued_tokens=50)
    assert its.free(stats) == Load(0, 100) and its.num_queued(stats) == 0
    assert its.num_queued(replace(stats, num_seqs_waiting=11)) == 3
    arriving = Arriving()
    arriving.enter(its, stats, Load(1, 30))
    with pytest.raises(Overloaded, match="requests of 30 tokens wait already"):
        arriving.enter(its, stats, Load(1, 21))
    arriving.enter(its, stats, Load(1, 20))
    with pytest.raises(Overloaded, match="2 sequences wait already"):
        arriving.enter(its, stats, Load(1, 0))


def test_room_is_counted_in_requests_and_in_tokens() -> None:
    check_room(Load(4, 100), Load(3, 90), Load(1, 10))
    with pytest.raises(Overloaded, match=r"3 sequences wait already \(max_num_queued_reqs"):
        check_room(Load(4, 100), Load(3, 9), Load(2, 10))
    with pytest.raises(Overloaded, match=r"90 tokens wait already, and this one has about 11 \(max_num_queued_tok"):
        check_room(Load(4, 100), Load(3, 90), Load(1, 11))
    check_room(Load(4, 100), NOTHING, Load(1024, 5000))  # where nothing waits, any request may


def test_what_arrives_counts_until_the_engine_counts_it() -> None:
    busy = replace(STATS, num_seqs_running=8, num_free_gpu_blocks=0)
    arriving = Arriving()
    for _ in range(8):
        arriving.enter(limits(), busy, TWENTY)
    with pytest.raises(Overloaded, match="8 sequences wait already"):
        arriving.enter(limits(), busy, TWENTY)
    arriving.enter(None, busy, TWENTY)  # it was let in elsewhere
    arriving.queued(TWENTY)
    arriving.queued(TWENTY)
    with pytest.raises(Overloaded):  # in the queue, and not counted yet
        arriving.enter(limits(), busy, TWENTY)
    arriving.counted()
    arriving.enter(limits(), busy, TWENTY)


def test_those_without_a_token_are_counted_while_they_have_places() -> None:
    engine = make_engine(Knobs(num_blocks=200, overrides={"max_num_seqs": 8, "max_num_batched_tokens": 16}))
    for number, output_ids in enumerate(((), (), ([5],))):
        params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
        add_request(engine, str(number), [number + 1] * 40, params, output_ids=output_ids)
    seen = set[tuple[int, int, int]]()
    while engine.stats().num_requests_finished < 3:
        engine.step()
        stats = engine.stats()
        seen.add((stats.num_requests_waiting, stats.num_seqs_beginning, stats.num_beginning_tokens))
    # The third one goes on with a token that it has had.
    assert seen == {(2, 1, 40), (1, 1, 40), (0, 0, 0)}
    add_request(engine, "aborted", [9] * 40, SamplingParams())
    engine.step()
    assert engine.stats().num_seqs_beginning == 1
    engine.abort_request("aborted")
    assert engine.stats().num_seqs_beginning == 0
