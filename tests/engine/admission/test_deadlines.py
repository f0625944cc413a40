"""Requests with a timeout: late ones end with an error of their own, and their blocks are free."""

import time

from engine.errors import DEADLINE_EXCEEDED
from engine.sampling_params import SamplingParams
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, finish, make_engine

LONG = SamplingParams(max_tokens=400, ignore_eos=True)


def test_a_late_request_ends_and_frees_its_blocks() -> None:
    engine = make_engine(Knobs(num_blocks=65))
    add_request(engine, "late", [1] * 40, LONG, timeout=0.05)
    outputs = engine.step()
    time.sleep(0.06)
    outputs += engine.step()
    (last,) = [output for output in outputs if output.finished]
    assert (last.error_code, last.outputs[0].finish_reason) == (DEADLINE_EXCEEDED, "error")
    assert "timeout (0.05 s were left here)" in str(last.error)
    finish(engine)
    stats = engine.stats()
    assert (stats.num_requests_running, stats.num_free_gpu_blocks) == (0, stats.num_gpu_blocks)


def test_a_request_that_waits_is_late_without_being_computed() -> None:
    engine = make_engine(Knobs(overrides={"max_num_seqs": 1}))
    add_request(engine, "first", [1] * 4, SamplingParams(max_tokens=40, ignore_eos=True))
    engine.step()
    add_request(engine, "late", [2] * 4, LONG, timeout=0.001)
    time.sleep(0.002)
    (told,) = [output for output in engine.step() if output.request_id == "late"]
    assert (told.error_code, told.outputs[0].token_ids) == (DEADLINE_EXCEEDED, [])
    finish(engine)


def test_a_request_in_time_is_not_disturbed_and_leaves_nothing() -> None:
    engine = make_engine(Knobs())
    add_request(engine, "timely", [1] * 4, SamplingParams(max_tokens=4, ignore_eos=True), timeout=1000)
    add_request(engine, "other", [1] * 4, SamplingParams(max_tokens=4, ignore_eos=True))
    finish(engine)
    assert engine.requests.deadlines.passed(time.monotonic() + 2000) == []
