"""The step channel, from the bytes up to steps that go to real processes and come back."""

import dataclasses
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context

import numpy as np
import pytest

from cluster.workers.channel import TOKEN_BYTES, ChannelError, Connection, ConnectionEnded, Listener, connect
from cluster.workers.deadline import StepDeadline
from cluster.workers.line import hold_line
from cluster.workers.messages import StepDone, StepFailed, decode, encode
from cluster.workers.step_channel import StepChannel
from cluster.workers.step_loop import serve_steps
from engine.errors import StepRaised, WorkerLost
from engine.outputs import SamplerOutput
from engine.step import ExecuteModelRequest
from tests.engine.worker.steps import decode_step, make_output

SECONDS = 30  # more than anything here takes


@contextmanager
def connection_pair() -> Iterator[tuple[Connection, Connection]]:
    left, right = (Connection(end) for end in socket.socketpair())
    try:
        yield left, right
    finally:
        left.close()
        right.close()


def same(left: object, right: object) -> bool:
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and bool((left == right).all())
    if dataclasses.is_dataclass(left):
        return type(left) is type(right) and all(
            same(getattr(left, field.name), getattr(right, field.name)) for field in dataclasses.fields(left)
        )
    return left == right


class TestMessages:
    @pytest.mark.parametrize("num_seqs", [0, 1, 33])
    def test_step_comes_back_as_it_was(self, num_seqs: int) -> None:
        request = decode_step(7, num_seqs)
        decoded = decode(bytearray(encode(request)))
        assert same(decoded, request)

    def test_arrays_may_be_written_to(self) -> None:
        decoded = decode(bytearray(encode(decode_step(7, 2))))
        assert isinstance(decoded, ExecuteModelRequest)
        decoded.input_ids[0] = 5
        assert decoded.input_ids[0] == 5

    def test_arrays_that_are_not_contiguous(self) -> None:
        request = dataclasses.replace(decode_step(7, 4), block_tables=np.arange(24, dtype=np.int32).reshape(4, 6).T)
        assert same(decode(bytearray(encode(request))), request)

    @pytest.mark.parametrize(
        "message",
        [StepDone(epoch=1, step=2, execute_ns=1 << 40), StepFailed(1, 2, "ValueError: ß", is_collective=True)],
    )
    def test_small_messages(self, message: StepDone | StepFailed) -> None:
        assert decode(bytearray(encode(message))) == message

    def test_every_cut_is_refused(self) -> None:
        frame = encode(decode_step(7, 3))
        for length in range(0, len(frame), 8):
            with pytest.raises(ChannelError):
                decode(bytearray(frame[:length]))

    def test_no_damage_does_more_than_change_values(self) -> None:
        request = decode_step(7, 3)
        frame = encode(request)
        random = np.random.default_rng(0)
        num_refused = 0
        for _ in range(2000):
            damaged = bytearray(frame)
            damaged[random.integers(len(frame))] = random.integers(256)
            try:
                decoded = decode(damaged)
            except ChannelError:
                num_refused += 1
                continue
            assert isinstance(decoded, ExecuteModelRequest)
        assert num_refused > 100

    @pytest.mark.parametrize(
        "header",
        [
            b"",
            b"\xc1",
            b"\x92\xa4Nope\x90",
            b"\x92\xa8StepDone\x93\x01\x02\xa13",
            b"\x92\xa8StepDone\x92\x01\x02",
            b"\x92\xa8StepDone\x93\x01\x02\xc3",
        ],
        ids=["empty", "not msgpack", "unknown message", "wrong type", "field missing", "bool for int"],
    )
    def test_headers_that_are_refused(self, header: bytes) -> None:
        frame = struct.pack("<I", len(header)) + header
        with pytest.raises(ChannelError, match="malformed"):
            decode(bytearray(frame + bytes(-len(frame) % 8)))


class TestConnection:
    def test_frames_arrive_whole_and_in_order(self) -> None:
        frames = [b"", b"a", bytes(3 << 20), b"last"]
        with connection_pair() as (left, right):
            sender = threading.Thread(target=lambda: [left.send(frame) for frame in frames])
            sender.start()
            received: list[bytearray] = []
            while len(received) < len(frames):
                received += right.receive()
            sender.join()
        assert received == frames

    def test_post_does_not_wait_for_the_reader(self) -> None:
        big = bytes(8 << 20)
        with connection_pair() as (left, right):
            assert left.post(big)
            assert left.post(b"after it")
            received: list[bytearray] = []
            while len(received) < 2:
                received += right.receive()
                left.flush()
        assert received == [big, b"after it"]

    def test_end_is_noticed_while_sending_and_receiving(self) -> None:
        with connection_pair() as (left, right):
            right.close()
            with pytest.raises(ConnectionEnded):
                left.receive()
            with pytest.raises(ConnectionEnded):
                left.send(b"x")

    def test_frame_beyond_the_limit_is_refused_before_it_is_read(self) -> None:
        near, far = socket.socketpair()
        with near, far:
            connection = Connection(near)
            far.sendall(struct.pack(">I", 1 << 31))
            with pytest.raises(ChannelError, match="2147483648 bytes"):
                connection.receive()


class TestListener:
    @pytest.mark.parametrize("host", [None, "127.0.0.1"], ids=["unix", "tcp"])
    def test_names_whoever_knows_the_token(self, host: str | None) -> None:
        listener = Listener(host)
        far = connect(listener.address, listener.token, "3")
        name, near = listener.accept(time.monotonic() + SECONDS)
        listener.close()
        near.send(b"hello")
        assert (name, far.receive()) == ("3", [b"hello"])
        near.close()
        far.close()

    def test_turns_away_whoever_does_not(self) -> None:
        listener = Listener("127.0.0.1")
        strangers = [connect(listener.address, token, "0") for token in (bytes(TOKEN_BYTES), b"", b"\xff" * 31)]
        host, port = listener.address.removeprefix("tcp:").split(":")
        too_long = socket.create_connection((host, int(port)))
        too_long.sendall(struct.pack(">I", 1 << 30))
        friend = connect(listener.address, listener.token, "1")
        name, near = listener.accept(time.monotonic() + SECONDS)
        assert name == "1"
        for stranger in strangers:
            with pytest.raises(ConnectionEnded):
                stranger.receive()
            stranger.close()
        with too_long:
            assert too_long.recv(1) == b""
        listener.close()
        near.close()
        friend.close()

    def test_gives_up_at_the_deadline(self) -> None:
        listener = Listener(None)
        with pytest.raises(TimeoutError):
            listener.accept(time.monotonic() + 0.01)
        listener.close()

    def test_unix_socket_is_gone_afterwards(self) -> None:
        listener = Listener(None)
        path = listener.address.removeprefix("unix:")
        assert os.path.exists(path)
        listener.close()
        assert not os.path.exists(os.path.dirname(path))

    def test_address_of_another_kind(self) -> None:
        with pytest.raises(ValueError, match="neither unix: nor tcp:"):
            connect("http://127.0.0.1", b"", "0")


class EchoWorker:
    """Rank 0 answers with the step's input ids. Token 13 raises, 14 raises in a collective, 15
    waits for ever.

    Rank 1 launches steps and finishes them in another thread; there 13 raises at the launch.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.is_asynchronous = rank == 1

    def execute(self, request: ExecuteModelRequest) -> SamplerOutput | None:
        match int(request.input_ids[self._rank]):
            case 13:
                raise ValueError("unlucky")
            case 14:
                raise RuntimeError("a peer has gone")
            case 15:
                threading.Event().wait()
        return make_output(request, request.input_ids) if self._rank == 0 else None

    def launch(self, request: ExecuteModelRequest) -> ExecuteModelRequest:
        if request.input_ids[self._rank] == 13:
            raise ValueError("unlucky")
        return request

    def finish(self, step: ExecuteModelRequest) -> SamplerOutput | None:
        return self.execute(step)

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
    context.set_forkserver_preload(["tests.cluster.workers.test_channel"])
    processes = [context.Process(target=run_worker, args=(listener.address, listener.token, rank)) for rank in range(3)]
    for process in processes:
        process.start()
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
        process.close()


def with_tokens(step: int, *token_ids: int) -> ExecuteModelRequest:
    return dataclasses.replace(decode_step(step, len(token_ids)), input_ids=np.array(token_ids, np.int32))


def lost(submit: Callable[[], object]) -> WorkerLost:
    with pytest.raises(WorkerLost) as caught:
        submit()
    return caught.value


class TestStepChannel:
    def test_steps_end_in_order_with_the_time_of_each_rank(self, channel: tuple[StepChannel, list[int]]) -> None:
        steps, _ = channel
        futures = [steps.submit(with_tokens(step, step, 0, 1)) for step in range(3)]
        outputs = [future.result(SECONDS) for future in futures]
        assert [output.step for output in outputs] == [0, 1, 2]
        assert [output.token_ids.tolist() for output in outputs] == [[0, 0, 1], [1, 0, 1], [2, 0, 1]]
        assert outputs[0].execute_ns.shape == (3,)

    def test_big_steps_do_not_block(self, channel: tuple[StepChannel, list[int]]) -> None:
        steps, pids = channel
        big = dataclasses.replace(with_tokens(0, 1, 2, 3), block_tables=np.zeros((256, 8192), np.int32))
        os.kill(pids[1], signal.SIGSTOP)
        future = steps.submit(big)
        assert not future.done()
        os.kill(pids[1], signal.SIGCONT)
        assert future.result(SECONDS).token_ids.tolist() == [1, 2, 3]

    def test_killed_rank_fails_every_step(
        self, channel: tuple[StepChannel, list[int]], caplog: pytest.LogCaptureFixture
    ) -> None:
        steps, pids = channel
        futures = [steps.submit(with_tokens(step, 0, 0, 15)) for step in (4, 5)]
        os.kill(pids[2], signal.SIGKILL)
        for future in futures:
            error = lost(lambda future=future: future.result(SECONDS))
            assert (error.rank, error.reason) == (2, "its process ended")
        assert lost(steps.submit(with_tokens(6, 0, 0, 0)).result).rank == 2
        assert caplog.messages == ["worker 2 on node node-b lost, step 4 in flight: its process ended"]

    def test_exception_names_its_rank(self, channel: tuple[StepChannel, list[int]]) -> None:
        steps, _ = channel
        with pytest.raises(StepRaised) as caught:
            steps.submit(with_tokens(0, 0, 13, 0)).result(SECONDS)
        assert (caught.value.rank, caught.value.step, caught.value.reason) == (1, 0, "ValueError: unlucky")

    def test_root_cause_comes_before_its_consequence(self, channel: tuple[StepChannel, list[int]]) -> None:
        steps, pids = channel
        future = steps.submit(with_tokens(0, 14, 15, 0))
        os.kill(pids[1], signal.SIGKILL)
        assert lost(lambda: future.result(SECONDS)).rank == 1

    def test_failed_collective_alone_is_reported_too(self, channel: tuple[StepChannel, list[int]]) -> None:
        steps, _ = channel
        with pytest.raises(StepRaised) as caught:
            steps.submit(with_tokens(0, 0, 0, 14)).result(SECONDS)
        assert (caught.value.rank, caught.value.reason) == (2, "RuntimeError: a peer has gone")

    def test_the_step_that_a_lost_rank_was_at(self, channel: tuple[StepChannel, list[int]]) -> None:
        steps, pids = channel
        futures = [steps.submit(with_tokens(4, 0, 15, 0)), steps.submit(with_tokens(5, 0, 0, 15))]
        os.kill(pids[1], signal.SIGKILL)
        assert lost(lambda: futures[1].result(SECONDS)).step == 4

    def test_workers_leave_with_the_driver_even_from_a_step(self, channel: tuple[StepChannel, list[int]]) -> None:
        steps, _ = channel
        future = steps.submit(with_tokens(0, 15, 15, 15))
        steps.close()  # the fixture ends the lines, and sees that the processes have gone
        assert lost(lambda: future.result(SECONDS)).reason == "the workers were stopped"


class TestDeadline:
    @pytest.fixture
    def deadline(self) -> StepDeadline:
        return StepDeadline(first_seconds=0.2, floor_seconds=0.2)

    def test_a_rank_that_lives_but_does_not_answer_is_lost(self, channel: tuple[StepChannel, list[int]]) -> None:
        steps, _ = channel
        error = lost(lambda: steps.submit(with_tokens(7, 0, 15, 0)).result(SECONDS))
        assert error.rank == 1 and error.step == 7
        assert error.reason.startswith("it lives, but has not answered step 7 for ")

    def test_the_limit_follows_the_slowest_steps(self) -> None:
        deadline = StepDeadline(first_seconds=600, floor_seconds=30)
        assert deadline.limit(1) == 600
        deadline.took(1, 0.01)
        deadline.took(100, 2.0)
        deadline.took(1000, 0.5)
        assert 30 + 19 * 2.0 < deadline.limit(100) <= 30 + 20 * 2.0
