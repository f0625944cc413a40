"""Block tables: shared, copied, moved and given back."""

from engine.sampling_params import SamplingParams
from tests.engine.arrivals import add_request
from tests.engine.workloads import Knobs, finish, make_engine


def test_prefix_hits_are_counted_and_isolated_by_salt():
    engine = make_engine(Knobs())
    prompt = [3, 4] * 40
    for request_id, salt in (("first", None), ("second", None), ("salted", "tenant")):
        add_request(engine, request_id, prompt, SamplingParams(max_tokens=2, ignore_eos=True), cache_salt=salt)
        assert finish(engine)[request_id].num_cached_tokens == (64 if request_id == "second" else 0)
    assert engine.stats().num_prefix_hits == 64
