"""What the engine tells of itself adds up."""

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
