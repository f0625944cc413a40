"""One epoch: worker processes that take seats together, run steps together, and are released when
one of them is lost.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from cluster.sockets import LOOPBACK
from cluster.sockets.listener import Listener
from cluster.workers.agreement import agree, common_arithmetic
from cluster.workers.nodes_memory import check_nodes
from cluster.workers.processes.accepting import accept_ranks
from cluster.workers.processes.actor import Loaded, Seat
from cluster.workers.processes.process import WorkerProcess
from cluster.workers.ray_errors import reason_of, result_of
from cluster.workers.steps.deadline import StepDeadline
from cluster.workers.steps.step_channel import StepChannel
from engine.config import EngineConfig
from engine.executor import Capacity, smallest

logger = logging.getLogger("squadron.executor")

LEAVE_SECONDS = 2.0  # for a survivor to leave a lost epoch's step


class WorkerGroup:
    """`steps` is the channel to the workers, `capacity` what they can hold, `processes` the workers
    in order of rank.
    """

    def __init__(
        self,
        config: EngineConfig,
        processes: Sequence[WorkerProcess],
        epoch: int,
        deadline: StepDeadline,
        level: str | None,
    ) -> None:
        """`processes` are running; `load` and `connect` make a group of them. `level`: that of
        earlier epochs, if any.
        """
        self.level = level
        self.processes = processes
        self.capacity: Capacity | None = None
        self.steps: StepChannel | None = None
        self._config = config
        self._epoch = epoch
        self._deadline = deadline
        self._calls: dict[int, Any] = {}  # by rank, the last call through Ray

    def load(self, before: Capacity | None) -> Capacity:
        """Seat the processes; `before`: the capacity that those which were seated before have a
        cache of.

        Raises InvalidConfig or WorkerLost.
        """
        loaded = self._take_seats()
        nodes = [process.facts.address for process in self.processes]
        arithmetic = common_arithmetic([each.arithmetic for each in loaded], nodes)
        num_gpu_blocks, num_cpu_blocks = smallest([(each.num_gpu_blocks, each.num_cpu_blocks) for each in loaded])
        is_as_before = before is not None and num_gpu_blocks == before.num_gpu_blocks
        seconds = self._call(
            lambda process, rank: process.actor.initialize_cache.remote(num_gpu_blocks, num_cpu_blocks),
            [rank for rank, process in enumerate(self.processes) if not (is_as_before and process.is_seated)],
        )
        for process in self.processes:
            process.is_seated = True
        if is_as_before and before is not None:
            self.capacity = before
        else:
            self.capacity = Capacity(num_gpu_blocks, num_cpu_blocks, max(seconds), arithmetic)
        return self.capacity

    def connect(self) -> StepChannel:
        """Begin to take steps; raises WorkerLost."""
        nodes = [process.facts.address for process in self.processes]
        here = ray.get_runtime_context().get_node_id()
        is_here = all(process.facts.node_id == here for process in self.processes)
        listener = Listener(None if is_here else ray.util.get_node_ip_address())
        try:
            for rank, process in enumerate(self.processes):
                self._calls[rank] = process.actor.run.remote(listener.address, listener.token, rank)
            runs = [self._calls[rank] for rank in range(len(self.processes))]
            self.steps = StepChannel(accept_ranks(listener, runs), nodes, self._deadline)
        finally:
            listener.close()
        for rank, process in enumerate(self.processes):
            process.on_loss = partial(self.steps.lose, rank)
            self._calls[rank].future().add_done_callback(partial(_report_end, process))
            if process.is_lost:
                self.steps.lose(rank, "its process ended")
        return self.steps

    def part(self) -> list[WorkerProcess]:
        """Take no more steps; the processes that got out of whatever they did, sound: they can take
        their seats again.
        """
        for process in self.processes:
            process.on_loss = _ignore  # what becomes of it now shows in its calls
        if self.steps is not None:
            self.steps.stop()
        for process in self.processes:
            process.abort(self._epoch)
        if self.steps is not None:
            self.steps.close()
        calls = list(self._calls.values())
        ended, _ = ray.wait(calls, num_returns=len(calls), timeout=LEAVE_SECONDS) if calls else ([], [])
        stuck = {rank for rank, call in self._calls.items() if call not in ended or not self._is_sound(call)}
        return [process for rank, process in enumerate(self.processes) if rank not in stuck and not process.is_lost]

    def _take_seats(self) -> list[Loaded]:
        facts = [process.facts for process in self.processes]
        ranks = list(range(len(facts)))
        is_one_node = len({fact.node_id for fact in facts}) == 1
        hosts = [LOOPBACK if is_one_node else fact.address for fact in facts]
        num_ranks = Counter(fact.node_id for fact in facts)
        (port,) = self._call(lambda process, rank: process.actor.open_store.remote(hosts[0]), [0])
        for process in self.processes:
            process.is_loading = True
        if self.level is None and self._config.device == "cpu":  # nothing is loaded yet
            available = self._call(lambda process, rank: process.actor.available_memory.remote(), ranks)
            check_nodes(self._config, [fact.address for fact in facts], available)
        offers = self._call(lambda process, rank: process.actor.offer.remote(self._config), ranks)
        level = self.level = agree(offers, [fact.address for fact in facts], self.level)
        loaded: list[Loaded] = self._call(
            lambda process, rank: process.actor.take_seat.remote(
                self._config,
                Seat(self._epoch, rank, hosts[rank], num_ranks[facts[rank].node_id], hosts[0], port, level),
            ),
            ranks,
        )
        for rank, (process, fact, worker) in enumerate(zip(self.processes, facts, loaded, strict=True)):
            process.is_loading = False
            if not process.is_seated:
                logger.info("worker %d, process %d on node %s: %s", rank, fact.pid, fact.address, worker.report)
        return loaded

    def _call(self, start: Callable[[WorkerProcess, int], Any], ranks: list[int]) -> list[Any]:
        """start(process, rank) on these ranks, and the results; the first failure ends the wait for
        the others.
        """
        calls = [start(self.processes[rank], rank) for rank in ranks]
        self._calls |= dict(zip(ranks, calls, strict=True))
        waiting = list(calls)
        while waiting:
            (ended,), waiting = ray.wait(waiting)
            result_of(ranks[calls.index(ended)], ended)
        return [result_of(rank, call) for rank, call in zip(ranks, calls, strict=True)]

    def _is_sound(self, call: Any) -> bool:
        """Whether a process is of use after the call: a `run` raises only what is beyond repair."""
        try:
            ray.get(call)
        except RayTaskError:
            return self.steps is None
        except RayError:
            return False
        return True


def _ignore(reason: str) -> None:
    return


def _report_end(process: WorkerProcess, run: "Future[None]") -> None:
    """Called by Ray when a worker's `run` has ended: with its epoch, with its process, or with an
    error beyond repair.
    """
    error = run.exception()
    if isinstance(error, RayError):
        process.lose(reason_of(error), is_our_doing=isinstance(error, RayTaskError))
