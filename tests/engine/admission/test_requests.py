"""Requests end one by one, or all: their blocks are free, and each is told of its end once."""

import pytest

from engine.errors import InvalidRequest
from engine.sampling_params import SamplingParams
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, finish, make_engine

PARAMS = SamplingParams(max_tokens=8, seed=1, ignore_eos=True)


def test_an_id_is_taken_until_its_request_has_ended() -> None:
    engine = make_engine(Knobs())
    add_request(engine, "r", [1] * 20, PARAMS)
    with pytest.raises(InvalidRequest, match="request id 'r' is running already"):
        add_request(engine, "r", [2] * 20, PARAMS)
    first = finish(engine)["r"]
    add_request(engine, "r", [1] * 20, PARAMS)
    assert finish(engine)["r"].outputs[0].token_ids == first.outputs[0].token_ids


def test_a_request_with_its_whole_answer_ends_without_a_step() -> None:
    engine = make_engine(Knobs())
    add_request(engine, "r", [1] * 20, PARAMS, output_ids=[[3] * 8])
    assert len(engine.requests) == 0 and engine.has_unfinished_requests()
    (last,) = engine.step()
    assert last.finished and last.error is None and last.outputs[0].finish_reason == "length"
    assert engine.stats().num_steps == 0 and not engine.has_unfinished_requests()


def test_all_end_with_the_reason_and_free_their_blocks() -> None:
    engine = make_engine(Knobs())
    for number in range(5):
        add_request(engine, str(number), [number + 1] * 40, PARAMS)
    engine.step()
    engine.requests.fail_all("over")
    assert engine.stats().num_free_gpu_blocks == engine.stats().num_gpu_blocks
    ended = engine.requests.take_outputs()
    assert sorted(output.request_id for output in ended) == ["0", "1", "2", "3", "4"]
    assert {output.error for output in ended} == {"over"}
    assert not engine.requests.take_outputs()


def test_nothing_is_freed_of_what_is_abandoned() -> None:
    engine = make_engine(Knobs())
    add_request(engine, "r", [1] * 40, PARAMS)
    engine.step()
    num_free = engine.stats().num_free_gpu_blocks
    (last,) = engine.abandon("a bug")
    assert last.finished and last.error == "a bug"
    assert engine.stats().num_free_gpu_blocks == num_free and not engine.has_unfinished_requests()
