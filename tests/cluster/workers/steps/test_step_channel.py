"""Steps that go to real processes and come back, or do not."""

import contextlib
import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context

import numpy as np
import pytest

from cluster.sockets.listener import Listener, connect
from cluster.workers.processes.line import hold_line
from cluster.workers.steps.deadline import StepDeadline
from cluster.workers.steps.step_channel import StepChannel
from cluster.workers.steps.step_loop import serve_steps
from engine.errors import StepRaised, WorkerLost
from engine.outputs import NO_FETCHED, SamplerOutput
from engine.step import ExecuteModelRequest, LateMasks, StepMasks
from tests.engine.worker.steps import decode_step, make_output

SECONDS = 120  # more than anything here takes


class EchoWorker:
    """Rank 0 answers with the step's input ids, or with the words of its masks if it awaits some.
    Token 13 raises, 14 raises in a collective, 15 waits for ever.

    Rank 1 launches steps and finishes them in another thread; there 13 raises at the launch.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._fetched = NO_FETCHED
        self.is_asynchronous = rank == 1

    def execute(self, request: ExecuteModelRequest, late_masks: LateMasks) -> SamplerOutput | None:
        return self.finish(self.launch(request, late_masks))

    def launch(self, request: ExecuteModelRequest, late_masks: LateMasks) -> ExecuteModelRequest:
        if request.input_ids[self._rank] == 13:
            raise ValueError("unlucky")
        if not request.awaits_masks:
            return request
        return dataclasses.replace(request, input_ids=late_masks(request).mask_words)

    def finish(self, request: ExecuteModelRequest) -> SamplerOutput | None:
        match int(request.input_ids[self._rank]):
            case 14:
                raise RuntimeError("a peer has gone")
            case 15:
                threading.Event().wait()
        self._fetched = np.array([[self._rank, 1]] * (request.step % 2), np.int32).reshape(-1, 2)
        return make_output(request, request.input_ids) if self._rank == 0 else None

    def take_fetched(self) -> np.ndarray:
        """Each rank has fetched a block in every step but those whose number is even."""
        return self._fetched

    def blames_peer(self, error: Exception) -> bool:
        return isinstance(error, RuntimeError)

    def is_beyond_repair(self, error: Exception) -> bool:
        return False


def run_worker(address: str, token: bytes, rank: int) -> None:
    """Serve steps for as long as the line lasts, and no longer than the steps' connection."""
    hold_line(connect(address, token, f"line {rank}"), print)
    serve_steps(connect(address, token, str(rank)), EchoWorker(rank))


@pytest.fixture
def deadline() -> StepDeadline:
    return StepDeadline()


@pytest.fixture
def channel(deadline: StepDeadline) -> Iterator[tuple[StepChannel, list[int]]]:
    """Three ranks, each a process; and their process ids."""
    listener = Listener(None)
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.cluster.workers.steps.test_step_channel"])
    processes = [context.Process(target=run_worker, args=(listener.address, listener.token, rank)) for rank in range(3)]
    with contextlib.ExitStack() as stack:
        for process in processes:
            process.start()
            stack.callback(process.kill)  # one that does not end by itself, or whose neighbour did not connect
        connections = dict(listener.accept(time.monotonic() + SECONDS) for _ in range(2 * len(processes)))
        listener.close()
        steps = StepChannel([connections[str(rank)] for rank in range(3)], ["node-a", "node-a", "node-b"], deadline)
        yield steps, [process.pid or 0 for process in processes]
        steps.close()
        for rank in range(3):
            connections[f"line {rank}"].close()
        for process in processes:
            process.join(SECONDS)
            assert process.exitcode is not None
    for process in processes:
        process.close()


def with_tokens(step: int, *token_ids: int) -> ExecuteModelRequest:
    return dataclasses.replace(decode_step(step, len(token_ids)), input_ids=np.array(token_ids, np.int32))


def lost(submit: Callable[[], object]) -> WorkerLost:
    with pytest.raises(WorkerLost) as caught:
        submit()
    return caught.value


def test_steps_end_in_order_with_the_time_of_each_rank(channel: tuple[StepChannel, list[int]]) -> None:
    steps, _ = channel
    futures = [steps.submit(with_tokens(step, step, 0, 1)) for step in range(3)]
    outputs = [future.result(SECONDS) for future in futures]
    assert [output.step for output in outputs] == [0, 1, 2]
    assert [output.token_ids.tolist() for output in outputs] == [[0, 0, 1], [1, 0, 1], [2, 0, 1]]
    assert outputs[0].execute_ns.shape == (3,)
    assert [len(output.fetched) for output in outputs] == [0, 3, 0]
    assert sorted(outputs[1].fetched.tolist()) == [[0, 1], [1, 1], [2, 1]]


def awaiting_masks(step: int) -> ExecuteModelRequest:
    return dataclasses.replace(with_tokens(step, 0, 0, 0), awaits_masks=True)


def masks(step: int, *words: int) -> StepMasks:
    return StepMasks(0, step, np.array([0, 1, 2, 3], np.int32), np.array(words, np.int32))


def test_masks_follow_their_step_however_many_steps_are_between(channel: tuple[StepChannel, list[int]]) -> None:
    steps, _ = channel
    futures = [steps.submit(awaiting_masks(0)), steps.submit(with_tokens(1, 5, 0, 0)), steps.submit(awaiting_masks(2))]
    steps.supply(masks(0, 7, 8, 9))
    futures.append(steps.submit(with_tokens(3, 6, 0, 0)))
    steps.supply(masks(2, 1, 2, 3))
    answers = [future.result(SECONDS).token_ids.tolist() for future in futures]
    assert answers == [[7, 8, 9], [5, 0, 0], [1, 2, 3], [6, 0, 0]]


def test_masks_that_a_socket_does_not_take_at_once(channel: tuple[StepChannel, list[int]]) -> None:
    steps, _ = channel
    future = steps.submit(awaiting_masks(0))
    steps.supply(StepMasks(0, 0, np.array([0, 0, 0, 1 << 20], np.int32), np.full(1 << 20, 3, np.int32)))
    assert len(future.result(SECONDS).token_ids) == 1 << 20


def test_a_rank_is_lost_while_masks_are_owed(channel: tuple[StepChannel, list[int]]) -> None:
    steps, pids = channel
    future = steps.submit(awaiting_masks(3))
    os.kill(pids[2], signal.SIGKILL)
    assert lost(lambda: future.result(SECONDS)).step == 3
    steps.supply(masks(3, 1, 2, 3))  # too late, and no error


def test_workers_leave_a_step_whose_masks_never_come(channel: tuple[StepChannel, list[int]]) -> None:
    steps, _ = channel
    future = steps.submit(awaiting_masks(0))
    steps.close()  # the fixture ends the lines, and sees that the processes have gone
    assert lost(lambda: future.result(SECONDS)).reason == "the workers were stopped"


def test_big_steps_do_not_block(channel: tuple[StepChannel, list[int]]) -> None:
    steps, pids = channel
    big = dataclasses.replace(with_tokens(0, 1, 2, 3), block_ids=np.zeros(256 * 8192, np.int32))
    os.kill(pids[1], signal.SIGSTOP)
    future = steps.submit(big)
    assert not future.done()
    os.kill(pids[1], signal.SIGCONT)
    assert future.result(SECONDS).token_ids.tolist() == [1, 2, 3]


def test_killed_rank_fails_every_step(channel: tuple[StepChannel, list[int]], caplog: pytest.LogCaptureFixture) -> None:
    steps, pids = channel
    futures = [steps.submit(with_tokens(step, 0, 0, 15)) for step in (4, 5)]
    os.kill(pids[2], signal.SIGKILL)
    for future in futures:
        error = lost(lambda future=future: future.result(SECONDS))
        assert (error.rank, error.reason) == (2, "its process ended")
    assert lost(steps.submit(with_tokens(6, 0, 0, 0)).result).rank == 2
    assert caplog.messages == ["worker 2 on node node-b lost, step 4 in flight: its process ended"]


def test_exception_names_its_rank(channel: tuple[StepChannel, list[int]]) -> None:
    steps, _ = channel
    with pytest.raises(StepRaised) as caught:
        steps.submit(with_tokens(0, 0, 13, 0)).result(SECONDS)
    assert (caught.value.rank, caught.value.step, caught.value.reason) == (1, 0, "ValueError: unlucky")


def test_root_cause_comes_before_its_consequence(channel: tuple[StepChannel, list[int]]) -> None:
    steps, pids = channel
    future = steps.submit(with_tokens(0, 14, 15, 0))
    os.kill(pids[1], signal.SIGKILL)
    assert lost(lambda: future.result(SECONDS)).rank == 1


def test_failed_collective_alone_is_reported_too(channel: tuple[StepChannel, list[int]]) -> None:
    steps, _ = channel
    with pytest.raises(StepRaised) as caught:
        steps.submit(with_tokens(0, 0, 0, 14)).result(SECONDS)
    assert (caught.value.rank, caught.value.reason) == (2, "RuntimeError: a peer has gone")


def test_the_step_that_a_lost_rank_was_at(channel: tuple[StepChannel, list[int]]) -> None:
    steps, pids = channel
    futures = [steps.submit(with_tokens(4, 0, 15, 0)), steps.submit(with_tokens(5, 0, 0, 15))]
    os.kill(pids[1], signal.SIGKILL)
    assert lost(lambda: futures[1].result(SECONDS)).step == 4


def test_workers_leave_with_the_driver_even_from_a_step(channel: tuple[StepChannel, list[int]]) -> None:
    steps, _ = channel
    future = steps.submit(with_tokens(0, 15, 15, 15))
    steps.close()  # the fixture ends the lines, and sees that the processes have gone
    assert lost(lambda: future.result(SECONDS)).reason == "the workers were stopped"


@pytest.mark.parametrize("deadline", [StepDeadline(first_seconds=0.2, floor_seconds=0.2)])
def test_a_rank_that_lives_but_does_not_answer_is_lost(channel: tuple[StepChannel, list[int]]) -> None:
    steps, _ = channel
    error = lost(lambda: steps.submit(with_tokens(7, 0, 15, 0)).result(SECONDS))
    assert error.rank == 1 and error.step == 7
    assert error.reason.startswith("it is alive but has not answered step 7 for ")
