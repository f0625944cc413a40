"""When a step ends, what its future gets, and who is late."""

from concurrent.futures import Future

import numpy as np
import pytest

from cluster.sockets.connection import ChannelError
from cluster.workers.steps.deadline import StepDeadline
from cluster.workers.steps.steps_in_flight import StepsInFlight
from engine.errors import WorkerLost
from engine.outputs import SamplerOutput
from tests.engine.worker.steps import decode_step, make_output

OUTPUT = make_output(decode_step(7, 2), np.array([3, 4], np.int32))


def test_a_step_ends_with_its_last_rank_and_has_the_time_of_each() -> None:
    steps = StepsInFlight(3, StepDeadline())
    future: Future[SamplerOutput] = Future()
    assert steps.add(7, 2, future)
    steps.answer(2, 7, 30, OUTPUT)
    steps.answer(0, 7, 10, None)
    assert not future.done() and steps.oldest_unanswered(0) is None and steps.oldest_unanswered(1) == 7
    steps.answer(1, 7, 20, None)
    assert future.result(0).token_ids.tolist() == [3, 4] and future.result(0).execute_ns.tolist() == [10, 20, 30]
    with pytest.raises(ChannelError, match="step 7, which is not in flight"):
        steps.answer(1, 7, 20, None)


def test_a_step_without_an_output_is_a_breach() -> None:
    steps = StepsInFlight(1, StepDeadline())
    steps.add(7, 2, Future())
    with pytest.raises(ChannelError, match="no rank had an output"):
        steps.answer(0, 7, 1, None)


def test_the_first_failure_counts_and_ends_later_steps_too() -> None:
    steps = StepsInFlight(1, StepDeadline())
    before: Future[SamplerOutput] = Future()
    after: Future[SamplerOutput] = Future()
    steps.add(7, 2, before)
    failure = WorkerLost(0, "its process ended")
    assert steps.fail(failure) == [before]
    assert steps.fail(WorkerLost(0, "again")) is None
    steps.answer(0, 7, 1, OUTPUT)
    assert not before.done()  # its failure is the caller's to tell
    assert not steps.add(8, 2, after) and after.exception(0) is failure


def test_the_first_rank_that_has_not_answered_the_oldest_step_is_late() -> None:
    steps = StepsInFlight(3, StepDeadline(first_seconds=1000))
    assert steps.find_overdue(slept=0) is None
    steps.add(7, 2, Future())
    steps.add(8, 2, Future())
    steps.answer(0, 7, 1, None)
    assert steps.find_overdue(slept=0) is None
    late = StepsInFlight(2, StepDeadline(first_seconds=0))
    late.add(7, 2, Future())
    late.add(8, 2, Future())
    late.answer(0, 7, 1, None)
    overdue = late.find_overdue(slept=0)
    assert overdue is not None and overdue[:2] == (1, 7)
    assert late.find_overdue(slept=1000) is None  # its reader was away
