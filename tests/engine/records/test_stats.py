"""What the engine tells of itself adds up."""

from dataclasses import asdict, replace

from engine.sampling_params import SamplingParams
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, finish, make_engine


def test_a_request_shows_in_every_count_that_it_touches() -> None:
    engine = make_engine(Knobs(num_blocks=33))
    assert engine.stats().kv_cache_usage == 0.0
    add_request(engine, "r", [1] * 40, SamplingParams(max_tokens=5, ignore_eos=True))
    assert engine.stats().num_requests_waiting == 1
    engine.step()
    now = engine.stats()
    assert (now.num_requests_waiting, now.num_requests_running, now.kv_cache_usage) == (0, 1, 3 / 32)
    finish(engine)
    end = engine.stats()
    assert (end.num_prompt_tokens, end.num_generation_tokens, end.num_steps) == (39, 5, 5)
    assert (end.num_requests_running, end.num_free_gpu_blocks) == (0, end.num_gpu_blocks)
    assert min(end.schedule_seconds, end.build_seconds, end.execute_seconds, end.process_seconds) > 0


def test_its_load_is_that_of_seats_or_cache_whichever_is_scarcer() -> None:
    engine = make_engine(Knobs(num_blocks=101, overrides={"max_num_seqs": 4}))
    block_size = engine.scheduler.blocks.block_size
    room = {"max_num_seqs": 4, "block_size": block_size}
    assert engine.stats().load(**room) == 0
    for number in range(6):
        add_request(engine, str(number), [number + 1] * 8, SamplingParams(max_tokens=4, ignore_eos=True))
    engine.step()
    stats = engine.stats()
    assert (stats.num_requests_running, stats.num_requests_waiting) == (4, 2)
    assert stats.load(**room) == 1.5
    waiting = replace(stats, num_waiting_tokens=3 * 100 * block_size)
    assert 3 < waiting.load(**room) < 3.1


def test_totals_go_on_when_a_worker_is_replaced() -> None:
    """With an empty cache: a monitor takes a total that falls for a restart."""
    engine = make_engine(Knobs())
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    for request_id in ("first", "second"):
        add_request(engine, request_id, [3, 4] * 40, params)
        finish(engine)
    before = engine.stats()
    assert (before.num_prefix_hits, before.num_prefix_queries) == (64, 160)
    engine.executor.crash_at = {before.num_steps + 2}
    add_request(engine, "third", [3, 4] * 40, params)
    finish(engine)
    after = engine.stats()
    assert after.num_recoveries == 1
    totals = [name for name, value in asdict(before).items() if name.startswith("num_") and isinstance(value, int)]
    now = {"num_requests_running", "num_requests_waiting", "num_free_gpu_blocks", "num_free_cpu_blocks"}
    now |= {"num_seqs_running", "num_seqs_waiting"}
    fallen = [name for name in totals if getattr(after, name) < getattr(before, name)]
    assert [name for name in fallen if name not in now] == []
    assert after.num_prefix_queries > 240
