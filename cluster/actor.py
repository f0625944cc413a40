"""A worker's process: `WorkerActor`, the Ray shell around `engine.worker.worker.Worker`, and the loop that runs its steps."""

import importlib
import logging
import os
import threading
import time
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from cluster.channel import ChannelError, Connection, ConnectionEnded, connect
from cluster.messages import Message, StepDone, StepFailed, decode, encode
from engine.config import EngineConfig
from engine.errors import in_a_line
from engine.outputs import SamplerOutput
from engine.request import ExecuteModelRequest

logger = logging.getLogger("squadron.worker")


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks meet: a store on rank 0's node."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a worker says of itself once it has its weights: see `Worker.report` and `determine_num_available_blocks`."""

    pid: int
    report: str
    num_gpu_blocks: int
    num_cpu_blocks: int


class StepWorker(Protocol):
    """What the loop needs of a worker."""

    def execute(self, request: ExecuteModelRequest) -> SamplerOutput | None:
        """Run one step; only the rank that speaks for the last stage has an output."""

    def blames_peer(self, error: Exception) -> bool:
        """Whether an error of `execute` may be another rank's doing."""


class WorkerActor:
    """What Ray places and starts. Ray's calls do the start; then `run` never returns, and steps come by the channel."""

    def __init__(self) -> None:
        # Not imported above: the driver, which needs this class too, has no need of torch.
        self._module: Any = importlib.import_module("engine.worker.worker")

    def open_store(self, host: str) -> int:
        """Rank 0 only: open the meeting point of all ranks; its port."""
        self._store = self._module.open_store(host)
        return int(self._store.port)

    def load(self, config: EngineConfig, rank: int, host: str, meeting: Meeting, num_ranks_here: int) -> Loaded:
        """Load the rank's shard; `host` is an address of this node. Raises InvalidConfig."""
        store = self._store if rank == 0 else self._module.join_store(meeting.host, meeting.port)
        self._worker = self._module.Worker(config, rank, store=store, host=host, num_ranks_here=num_ranks_here)
        return Loaded(os.getpid(), self._worker.report, *self._worker.determine_num_available_blocks())

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> float:
        """Seconds to swap a block."""
        seconds: float = self._worker.initialize_cache(num_gpu_blocks, num_cpu_blocks)
        return seconds

    def run(self, address: str, token: bytes, rank: int) -> None:
        """Run steps for as long as the driver is there. This call's end is how Ray tells of the process' end."""
        serve_steps(connect(address, token, str(rank)), self._worker)


def serve_steps(connection: Connection, worker: StepWorker) -> NoReturn:
    """Run steps. When the driver goes away the process exits, even from the middle of a step."""
    threading.Thread(target=_exit_with_driver, args=(connection,), name="driver", daemon=True).start()
    failed = False
    while True:
        for frame in _receive(connection):
            request = decode(frame)
            if not isinstance(request, ExecuteModelRequest):
                raise ChannelError(f"the driver sent {type(request).__name__}")
            if not failed:  # a step that failed has left the ranks at odds: none after it can be right
                answer = _answer(worker, request)
                failed = isinstance(answer, StepFailed)
                connection.send(encode(answer))


def _receive(connection: Connection) -> list[bytearray]:
    try:
        return connection.receive()
    except ConnectionEnded:
        os._exit(1)


def _answer(worker: StepWorker, request: ExecuteModelRequest) -> Message:
    started = time.perf_counter_ns()
    try:
        output = worker.execute(request)
    except Exception as error:
        logger.exception("step %d of epoch %d failed", request.step, request.epoch)
        return StepFailed(request.epoch, request.step, in_a_line(error), worker.blames_peer(error))
    return output or StepDone(request.epoch, request.step, time.perf_counter_ns() - started)


def _exit_with_driver(connection: Connection) -> None:
    """A thread of its own, because a worker may be waiting for a dead peer."""
    connection.wait_for_end()
    os._exit(1)
