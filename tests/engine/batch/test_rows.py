"""A step of plain rows alone has the rows that it would have beside others."""

import numpy as np

from engine.batch.rows import Rows, _mixed_rows, _plain_rows
from engine.sampling_params import SamplingParams
from engine.scheduling.plan import SchedulerOutputs
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, make_engine


def stored(plan: SchedulerOutputs) -> list[tuple[int, int]]:
    """Where each sequence's next token will be."""
    return [(part.seq.sampled_step, part.seq.sampled_row) for part in plan.scheduled]


def restore(plan: SchedulerOutputs, places: list[tuple[int, int]]) -> None:
    for part, place in zip(plan.scheduled, places, strict=True):
        part.seq.sampled_step, part.seq.sampled_row = place


def flat(rows: Rows) -> list[np.ndarray]:
    *arrays, sampling = rows
    return [*arrays, *(getattr(sampling, name) for name in sampling.__slots__)]


def test_one_pass_finds_what_others_find() -> None:
    engine = make_engine(Knobs(depth=2, runs_ahead=True))
    for number in range(5):
        params = SamplingParams(max_tokens=20 + number, ignore_eos=True, temperature=0.5 * number, seed=number)
        add_request(engine, str(number), [number] * (9 + 8 * number), params)
    schedule = engine.scheduler.schedule
    num_carried: list[int] = []

    def compared(num_in_flight: int = 0) -> SchedulerOutputs:
        plan = schedule(num_in_flight)
        if not plan.others:
            before = stored(plan)
            mixed, after = _mixed_rows(plan), stored(plan)
            restore(plan, before)
            plain = _plain_rows(plan)
            assert stored(plan) == after
            restore(plan, before)
            for ours, theirs in zip(flat(plain), flat(mixed), strict=True):
                assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
            num_carried.append(len(plain.carried_steps))
        return plan

    engine.scheduler.schedule = compared  # type: ignore[method-assign]
    while engine.has_unfinished_requests():
        engine.step()
    assert len(num_carried) > 10 and sum(num_carried) > 50
