"""A worker's process: `WorkerActor`, the Ray shell around `engine.worker.worker.Worker`, and the loop that runs its steps."""

import importlib
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import ray

from cluster.channel import ChannelError, Connection, ConnectionEnded, connect
from cluster.line import hold_line
from cluster.messages import Message, StepDone, StepFailed, decode, encode
from cluster.process_state import read_start_time
from engine.config import EngineConfig
from engine.errors import in_a_line
from engine.fingerprint import Offer
from engine.outputs import SamplerOutput
from engine.request import ExecuteModelRequest

logger = logging.getLogger("squadron.worker")


@dataclass(frozen=True, slots=True)
class Facts:
    """Which process this is, and where."""

    pid: int
    start_time: int  # in the machine's ticks: what tells it from a later process of the same number
    machine: str  # the same for processes that can see each other in /proc, only
    node_id: str  # Ray's
    address: str  # of the node


@dataclass(frozen=True, slots=True)
class Seat:
    """A rank in an epoch, and where its ranks meet: a store on rank 0's node."""

    epoch: int
    rank: int
    host: str  # an address of this rank's node that the others can reach
    num_ranks_here: int  # on the node
    store_host: str
    store_port: int
    level: str  # at which all ranks compute: see `cluster.agreement`


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a worker says of itself once it has its weights: see `Worker.report` and `determine_num_available_blocks`."""

    report: str
    arithmetic: dict[str, str]
    num_gpu_blocks: int
    num_cpu_blocks: int


class StepWorker(Protocol):
    """What the loop needs of a worker."""

    @property
    def is_asynchronous(self) -> bool:
        """Whether a step is run by `launch` and `finish`, the next being launched meanwhile; else by `execute`."""

    def execute(self, request: ExecuteModelRequest) -> SamplerOutput | None:
        """Run one step; only the rank that speaks for the last stage has an output."""

    def launch(self, request: ExecuteModelRequest) -> Any:
        """Begin one step, after those launched before."""

    def finish(self, step: Any) -> SamplerOutput | None:
        """Wait for the step that was launched the longest ago, in another thread."""

    def blames_peer(self, error: Exception) -> bool:
        """Whether an error of a step may be another rank's doing."""

    def is_beyond_repair(self, error: Exception) -> bool:
        """Whether no later step can succeed in this process after an error of a step."""


class LookoutActor:
    """A process that tells its machine, lives as long as its line to the driver, and sees on it which others are stopped."""

    def introduce(self) -> Facts:
        return read_facts(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address())

    def hold_line(self, address: str, token: bytes) -> None:
        """Lay the line that lasts as long as the process: at its end the process exits, even from the middle of a step."""
        hold_line(connect(address, token, "line"), self._abort)

    def _abort(self, epoch: int) -> None:
        """Called by the line's thread."""


class WorkerActor(LookoutActor):
    """What Ray places and starts; then it is a spare until it is given a seat.

    Ray's calls do the start of an epoch (`take_seat`, `initialize_cache`), then `run` lasts as long as the epoch; steps come by
    the channel. The next epoch begins with `take_seat` again, of the same rank, where only the ranks' groups are made anew.
    """

    def __init__(self) -> None:
        # Not imported above: the driver, which needs this class too, has no need of torch.
        self._module: Any = importlib.import_module("engine.worker.worker")
        self._offers: Any = importlib.import_module("engine.worker.offer")
        self._worker: Any = None
        self._offer: Offer | None = None
        self._epoch = -1
        self._store: Any = None

    def open_store(self, host: str) -> int:
        """Rank 0 only: open the meeting point of all ranks; its port."""
        self._store = self._module.open_store(host)
        return int(self._store.port)

    def offer(self, config: EngineConfig) -> Offer:
        """What it can compute with; once it has a seat, that of its seat only. Raises InvalidConfig."""
        if self._offer is None:
            self._offer = self._offers.offer(config)
        return self._offer

    def take_seat(self, config: EngineConfig, seat: Seat) -> Loaded:
        """Meet the other ranks; and load the rank's shard, unless it is there from the epoch before. Raises InvalidConfig."""
        store = self._store if seat.rank == 0 else self._module.join_store(seat.store_host, seat.store_port)
        self._epoch = seat.epoch
        if self._worker is not None:
            self._worker.rejoin(store, seat.host)
        else:
            self._offers.use(seat.level)
            self._offer = replace(self.offer(config), levels=(seat.level,))
            self._worker = self._module.Worker(
                config, seat.rank, store=store, host=seat.host, num_ranks_here=seat.num_ranks_here
            )
        return Loaded(self._worker.report, self._worker.arithmetic, *self._worker.determine_num_available_blocks())

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> float:
        """Seconds to swap a block."""
        seconds: float = self._worker.initialize_cache(num_gpu_blocks, num_cpu_blocks)
        return seconds

    def run(self, address: str, token: bytes, rank: int) -> None:
        """Run steps until the driver ends the epoch. Raises what leaves the process of no more use."""
        serve_steps(connect(address, token, str(rank)), self._worker)

    def _abort(self, epoch: int) -> None:
        """Called by the line's thread: the driver may give up an epoch while this rank waits for one that is gone."""
        if epoch == self._epoch and self._worker is not None:
            self._worker.abort()


def serve_steps(connection: Connection, worker: StepWorker) -> None:
    """Run steps until the driver ends the connection; then it is closed. Raises the error that is beyond repair."""
    loop = StepLoop(connection, worker)
    try:
        while True:
            for frame in connection.receive():
                request = decode(frame)
                if not isinstance(request, ExecuteModelRequest):
                    raise ChannelError(f"the driver sent {type(request).__name__}")
                loop.take(request)
    except ConnectionEnded:
        return
    finally:
        loop.close()


class StepLoop:
    """Steps in, answers out, in order: one for each step up to the first that fails.

    A worker that runs beside its host gets a step while a thread of the loop's own waits for the one before.
    """

    def __init__(self, connection: Connection, worker: StepWorker) -> None:
        self._connection = connection
        self._worker = worker
        self._waiting = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outputs")
        self._has_failed = False  # a step that failed has left the ranks at odds: none after it can be right
        self._has_told = False  # of that step
        self._fatal: Exception | None = None
        self._free_since_ns = 0  # when the last step that was answered had ended

    def take(self, request: ExecuteModelRequest) -> None:
        """Run a step, or begin to."""
        started_ns = time.perf_counter_ns()
        if self._has_failed:
            return
        if not self._worker.is_asynchronous:
            self._answer(request, started_ns, lambda: self._worker.execute(request))
            return
        launched: Future[Any] = Future()
        try:
            launched.set_result(self._worker.launch(request))
        except Exception as error:
            self._has_failed = True
            launched.set_exception(error)
        self._waiting.submit(self._answer, request, started_ns, lambda: self._worker.finish(launched.result()))

    def close(self) -> None:
        """Close the connection once no step is under way. Raises the error that is beyond repair."""
        self._waiting.shutdown()
        self._connection.close()
        if self._fatal is not None:
            raise self._fatal

    def _answer(
        self, request: ExecuteModelRequest, started_ns: int, finish: Callable[[], SamplerOutput | None]
    ) -> None:
        """Whatever goes wrong for good ends the connection, and so wakes who receives from it."""
        try:
            if not self._has_told:
                self._connection.send(encode(self._answer_of(request, started_ns, finish)))
        except ConnectionEnded:
            return
        except Exception as error:
            self._fatal = error
            self._connection.end()

    def _answer_of(
        self, request: ExecuteModelRequest, started_ns: int, finish: Callable[[], SamplerOutput | None]
    ) -> Message:
        try:
            output = finish()
        except Exception as error:
            self._has_failed = self._has_told = True
            logger.exception("step %d of epoch %d failed", request.step, request.epoch)
            if self._worker.is_beyond_repair(error):
                raise
            return StepFailed(request.epoch, request.step, in_a_line(error), self._worker.blames_peer(error))
        ended_ns = time.perf_counter_ns()
        began_ns, self._free_since_ns = max(started_ns, self._free_since_ns), ended_ns
        return output or StepDone(request.epoch, request.step, ended_ns - began_ns)


def read_facts(node_id: str, address: str) -> Facts:
    """Of this process."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    start_time = read_start_time(os.getpid())
    assert start_time is not None
    return Facts(os.getpid(), start_time, f"{boot_id} {os.readlink('/proc/self/ns/pid')}", node_id, address)
