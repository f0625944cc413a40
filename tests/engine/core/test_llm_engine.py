"""What a user of the engine is promised, on the history executor: refusals, isolation, pressure,
times that add up.
"""

from engine.sampling_params import SamplingParams
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, finish, make_engine


def test_abort_frees_everything_at_once_and_may_be_said_twice():
    engine = make_engine(Knobs())
    add_request(engine, "r", [1] * 40, SamplingParams(n=3, max_tokens=50, ignore_eos=True))
    for _ in range(5):
        engine.step()
    engine.abort_request("r")
    engine.abort_request("r")
    assert engine.stats().num_free_gpu_blocks == engine.stats().num_gpu_blocks
    assert finish(engine) == {}
