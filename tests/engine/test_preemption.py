"""Who gives up blocks when there are too few, and how."""

import random

import pytest

from engine.sampling_params import SamplingParams
from tests.engine.arrivals import add_request
from tests.engine.workloads import Knobs, essence, make_engine, random_requests, run


@pytest.mark.parametrize("swap_seconds", [0.0, float("inf")])
def test_a_quarter_of_the_cache_loses_nothing(swap_seconds):
    rng = random.Random(7)
    requests = [r for r in random_requests(rng, 60) if r.params.num_samples == 1]
    demand = sum(-(-(len(r.prompt) + r.params.max_tokens) // 16) for r in requests)
    plenty = run(make_engine(Knobs(num_blocks=demand + 1)), requests)
    engine = make_engine(Knobs(num_blocks=demand // 4 + 1, num_cpu_blocks=demand, swap_seconds_per_block=swap_seconds))
    scarce = run(engine, requests, rng=None)
    assert {key: essence(answer) for key, answer in scarce.items()} == {
        key: essence(answer) for key, answer in plenty.items()
    }
    stats = engine.stats()
    assert (stats.num_preemptions_swap if swap_seconds == 0 else stats.num_preemptions_recompute) > 0
    assert (stats.num_wasted_tokens > 0) == (swap_seconds > 0)


def test_waiting_after_a_preemption_is_not_called_decoding():
    engine = make_engine(Knobs(num_blocks=12, depth=2, runs_ahead=True, swap_seconds_per_block=float("inf")))
    for number in range(4):
        add_request(engine, f"r{number}", [number + 1] * 30, SamplingParams(max_tokens=60, ignore_eos=True))
    waited = []
    while engine.has_unfinished_requests():
        engine.step()
        waited += [
            lane.group.metrics.phase for lane in engine.scheduler.queues.waiting if lane.group.metrics.num_preemptions
        ]
    assert waited and set(waited) == {"preemption"}
