"""A worker's process: `WorkerActor`, the Ray shell around `engine.worker.worker.Worker`."""

import importlib
from dataclasses import dataclass, replace
from typing import Any

import ray

from cluster.download.models import fetched
from cluster.memory import available_memory
from cluster.sockets.listener import connect
from cluster.workers.processes.line import hold_line
from cluster.workers.processes.process_state import Facts, read_facts
from cluster.workers.steps.step_loop import serve_steps
from engine.checkpoint.fingerprint import Offer
from engine.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Seat:
    """A rank in an epoch, and where its ranks meet: a store on rank 0's node. One that is alone
    meets nobody.
    """

    epoch: int
    rank: int
    host: str  # an address of this rank's node, reachable from the others
    num_ranks_here: int  # on the node
    store_host: str
    store_port: int | None  # None: of a rank alone
    level: str  # that all ranks compute at: see `cluster.workers.group.agreement`
    weights: Any = None  # `Weights` that all ranks have; None: those that are configured
    share: Any = None  # `Share` of a model by its name that the node needs; None: all of it


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a worker reports once its weights are loaded: see `Worker.report` and
    `determine_num_available_blocks`.
    """

    report: str
    arithmetic: dict[str, str]
    sample: Any  # `Sample`
    num_gpu_blocks: int
    num_cpu_blocks: int


class LookoutActor:
    """A process that reports which machine it is on, lives as long as its line to the driver, and
    can tell whether other processes of its machine are stopped.
    """

    def introduce(self) -> Facts:
        return read_facts(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address())

    def hold_line(self, address: str, token: bytes) -> None:
        """Open the line that lasts as long as the process: when it ends the process exits, even in
        the middle of a step.
        """
        hold_line(connect(address, token, "line"), self._abort)

    def _abort(self, epoch: int) -> None:
        """Called by the line's thread."""


class WorkerActor(LookoutActor):
    """Placed and started by Ray; a spare until it takes a seat.

    An epoch starts by calls through Ray (`take_seat`, `initialize_cache`); then `run` lasts as long
    as the epoch, and steps arrive on the step channel. The next epoch begins with `take_seat` of
    the same rank again, which then only makes the ranks' groups anew.
    """

    def __init__(self) -> None:
        # Not imported above: the driver needs this class too, but not torch.
        self._module: Any = importlib.import_module("engine.worker.worker")
        self._ranks: Any = importlib.import_module("engine.worker.ranks")
        self._offers: Any = importlib.import_module("engine.worker.device.offer")
        self._worker: Any = None
        self._offer: Offer | None = None
        self._epoch = -1
        self._store: Any = None

    def open_store(self, host: str) -> int:
        """Rank 0 only: open the meeting point of all ranks; its port."""
        self._store = self._ranks.open_store(host)
        return int(self._store.port)

    def available_memory(self) -> int:
        """Bytes, where it runs."""
        return available_memory()

    def offer(self, config: EngineConfig, share: Any = None) -> Offer:
        """What it can compute with; once it has a seat, only the seat's level. What the node needs
        of the model is there then. Raises InvalidConfig.
        """
        if self._offer is None:
            config = fetched(config, share=share)  # here, and not while the ranks wait for each other
            self._offer = self._offers.offer(config)
        return self._offer

    def take_seat(self, config: EngineConfig, seat: Seat) -> Loaded:
        """Meet the other ranks, and load the rank's shard unless it is still there from the
        previous epoch. Raises InvalidConfig. Of other weights than those of the previous epoch it
        has no cache yet.
        """
        store = self._store_of(seat)
        self._epoch = seat.epoch
        config = fetched(config, share=seat.share)
        if self._worker is not None:
            self._worker.rejoin(store, seat.host)
            self._worker.hold(seat.weights)
        else:
            self._offers.use(seat.level)
            self._offer = replace(self.offer(config, seat.share), levels=(seat.level,))
            self._worker = self._module.Worker(
                config,
                seat.rank,
                store=store,
                host=seat.host,
                num_ranks_here=seat.num_ranks_here,
                weights=seat.weights,
            )
        worker = self._worker
        return Loaded(worker.report, worker.arithmetic, worker.sample, *worker.determine_num_available_blocks())

    def _store_of(self, seat: Seat) -> Any:
        """Where its ranks meet; closes the one of an earlier epoch that had more of them."""
        if seat.store_port is None:
            self._store = None
        return self._store if seat.rank == 0 else self._ranks.join_store(seat.store_host, seat.store_port)

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int, weights_digest: str) -> float:
        """Make the cache; returns the seconds to swap a block. `weights_digest`: of all files."""
        seconds: float = self._worker.initialize_cache(num_gpu_blocks, num_cpu_blocks, weights_digest)
        return seconds

    def sleep(self, level: int) -> None:
        """Between two epochs: see `Worker.sleep`."""
        if self._worker is not None:
            self._worker.sleep(level)

    def run(self, address: str, token: bytes, rank: int) -> None:
        """Run steps until the driver ends the epoch. Raises errors after which the process is
        unusable.
        """
        serve_steps(connect(address, token, str(rank)), self._worker)

    def _abort(self, epoch: int) -> None:
        """Called by the line's thread: the driver may abort an epoch while this rank waits for a
        lost one.
        """
        if epoch == self._epoch and self._worker is not None:
            self._worker.abort()
