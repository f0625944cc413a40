"""How long a step may be expected to take, by the size of earlier ones."""

from concurrent.futures import Future

import pytest

from engine.outputs import SamplerOutput
from engine.records.step_times import StepTimes
from engine.sampling_params import SamplingParams
from engine.step import ExecuteModelRequest
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, make_engine


def test_steps_of_one_token_say_nothing_of_large_ones_once_these_are_known() -> None:
    times = StepTimes()
    assert times.expected(5) is None
    times.took(1, 0.1)
    assert times.expected(1) == 0.1
    assert times.expected(2048) == pytest.approx(204.8)
    times.took(1000, 5.0)
    times.took(1000, 4.0)
    assert times.expected(2000) == pytest.approx(9.9)
    assert times.expected(100) == pytest.approx(10.0), "as much for each as a step of one"
    assert times.expected(1) == 0.1


def test_before_there_was_a_small_one_it_takes_no_longer_than_a_large_one() -> None:
    times = StepTimes()
    times.took(1000, 5.0)
    assert times.expected(1) == pytest.approx(5.12)


def test_a_slow_one_is_forgotten() -> None:
    times = StepTimes()
    times.took(1, 60.0)
    for _ in range(1000):
        times.took(1, 0.1)
    assert times.expected(1) == pytest.approx(0.1)


def test_an_engine_knows_what_its_steps_in_flight_take(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(Knobs(num_blocks=100))
    recorder, seen = engine.recorder, list[float | None]()
    submit = engine.executor.submit

    def submitted(request: ExecuteModelRequest) -> Future[SamplerOutput]:
        seen.append(recorder.seconds_in_flight)
        return submit(request)

    monkeypatch.setattr(engine.executor, "submit", submitted)
    monkeypatch.setattr(recorder.timeline.times, "took", lambda num_tokens, seconds: None)
    recorder.timeline.times._slowest = {1: 0.5}
    add_request(engine, "one", [7] * 40, SamplingParams(max_tokens=3, ignore_eos=True))
    for _ in range(3):
        engine.step()
    recorder.timeline.times._slowest = {}
    add_request(engine, "two", [7] * 40, SamplingParams(max_tokens=1))
    engine.step()
    assert seen == [20.0, 0.5, 0.5, None] and recorder.seconds_in_flight == 0.0
