"""What may wait: as configured, or sized from the cache, with the free places on top."""

import math
from dataclasses import replace

import pytest

from engine.admission.queue_limits import NOTHING, Arriving, Load, QueueLimits, check_room
from engine.config import EngineConfig
from engine.errors import Overloaded
from engine.records.stats import EngineStats
from tests.engine.support.workloads import DEMO

STATS = replace(
    EngineStats(**dict.fromkeys(EngineStats.__slots__, 0)),
    num_requests_running=6,
    num_gpu_blocks=100,
    num_free_gpu_blocks=30,
)


def limits(**options: int) -> QueueLimits:
    return QueueLimits.of(EngineConfig.create(model=DEMO, max_num_seqs=8, **options), STATS)


def test_by_default_as_much_may_wait_as_may_run() -> None:
    assert limits().max_waiting == Load(8, 1600)
    assert limits(max_num_queued_reqs=3, max_num_queued_tokens=70).max_waiting == Load(3, 70)
    assert limits(max_num_queued_reqs=0, max_num_queued_tokens=0).max_waiting == Load(math.inf, math.inf)


def test_what_is_free_needs_not_wait_unless_others_do() -> None:
    assert limits().free(STATS) == Load(2, 480)
    assert limits().free(replace(STATS, num_requests_waiting=1)) == NOTHING
    assert limits().free(replace(STATS, num_requests_swapped=1)) == NOTHING


def test_room_is_counted_in_requests_and_in_tokens() -> None:
    check_room(Load(4, 100), Load(3, 90), Load(1, 10))
    with pytest.raises(Overloaded, match=r"3 requests wait already \(max_num_queued_reqs"):
        check_room(Load(4, 100), Load(3, 9), Load(2, 10))
    with pytest.raises(Overloaded, match=r"90 tokens wait already, and this one has about 11 \(max_num_queued_tok"):
        check_room(Load(4, 100), Load(3, 90), Load(1, 11))
    check_room(Load(4, 100), NOTHING, Load(1024, 5000))  # where nothing waits, any request may


def test_what_arrives_counts_until_the_engine_counts_it() -> None:
    busy = replace(STATS, num_requests_running=8, num_free_gpu_blocks=0)
    arriving = Arriving()
    for _ in range(8):
        arriving.enter(limits(), busy, 20)
    with pytest.raises(Overloaded, match="8 requests wait already"):
        arriving.enter(limits(), busy, 20)
    arriving.enter(None, busy, 20)  # it was let in elsewhere
    arriving.queued(20)
    arriving.queued(20)
    with pytest.raises(Overloaded):  # in the queue, and not counted yet
        arriving.enter(limits(), busy, 20)
    arriving.counted()
    arriving.enter(limits(), busy, 20)
