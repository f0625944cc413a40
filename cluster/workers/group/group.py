"""One epoch: worker processes that take seats together, run steps together, and are released when
one of them is lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from cluster.workers.group.agreement import Agreed
from cluster.workers.group.calls import RankCalls
from cluster.workers.group.seating import take_seats
from cluster.workers.processes.accepting import accept_ranks, listening
from cluster.workers.processes.process import WorkerProcess
from cluster.workers.steps.deadline import StepDeadline
from cluster.workers.steps.step_channel import StepChannel
from engine.config import EngineConfig
from engine.executor import Capacity, Weights

LEAVE_SECONDS = 2.0  # for a survivor to leave a lost epoch's step


@dataclass(slots=True)
class Lasting:
    """What an engine's epochs hand on: how long steps take, and what the ranks compute with once
    they have agreed.
    """

    deadline: StepDeadline = field(default_factory=StepDeadline)
    agreed: Agreed | None = None
    weights: Weights | None = None  # that the ranks have; None: those that are configured

    def change_weights(self, weights: Weights | None) -> None:
        """For epochs to come. What the ranks compute with stays, but for the weights themselves,
        and those must still be the same on all ranks.
        """
        self.weights = weights
        if self.agreed is not None:
            rest = {name: value for name, value in self.agreed.arithmetic.items() if name != "weights"}
            self.agreed = Agreed(self.agreed.level, rest)


class WorkerGroup:
    """`steps` is the channel to the workers, `capacity` what they can hold, `processes` the workers
    in order of rank.
    """

    def __init__(self, config: EngineConfig, processes: Sequence[WorkerProcess], epoch: int, lasting: Lasting) -> None:
        """`processes` are running; `load` and `connect` make a group of them."""
        self.processes = processes
        self.capacity: Capacity | None = None
        self.steps: StepChannel | None = None
        self._config = config
        self._epoch = epoch
        self._lasting = lasting
        self._calls = RankCalls(processes)

    def load(self, before: Capacity | None) -> Capacity:
        """Seat the processes; `before`: the capacity that those which were seated before have a
        cache of.

        Raises InvalidConfig or WorkerLost.
        """
        seated = take_seats(
            self._config, self._epoch, self.processes, self._calls, self._lasting.agreed, self._lasting.weights
        )
        num_gpu_blocks, num_cpu_blocks = seated.num_gpu_blocks, seated.num_cpu_blocks
        is_as_before = before is not None and num_gpu_blocks == before.num_gpu_blocks
        digest = seated.agreed.arithmetic["weights"]
        seconds = self._calls.results(
            lambda process, rank: process.actor.initialize_cache.remote(num_gpu_blocks, num_cpu_blocks, digest),
            [rank for rank, process in enumerate(self.processes) if not (is_as_before and process.is_seated)],
        )
        for process in self.processes:
            process.is_seated = True
        if is_as_before and before is not None:
            self.capacity = before
        else:
            self.capacity = Capacity(num_gpu_blocks, num_cpu_blocks, max(seconds), seated.agreed.arithmetic)
        self._lasting.agreed = seated.agreed
        return self.capacity

    def connect(self) -> StepChannel:
        """Begin to take steps; raises WorkerLost."""
        with listening([process.facts.node_id for process in self.processes]) as listener:
            runs = self._calls.start(
                lambda process, rank: process.actor.run.remote(listener.address, listener.token, rank),
                range(len(self.processes)),
            )
            nodes = [process.facts.address for process in self.processes]
            self.steps = StepChannel(
                accept_ranks(listener, runs),
                nodes,
                self._lasting.deadline,
                num_sampling=self._config.tensor_parallel_size,
            )
        for rank, process in enumerate(self.processes):
            process.on_loss = partial(self.steps.lose, rank)
            self._calls.report_end(rank)
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
        stuck = self._calls.stuck(LEAVE_SECONDS, has_run=self.steps is not None)
        return [process for rank, process in enumerate(self.processes) if rank not in stuck and not process.is_lost]


def _ignore(reason: str) -> None:
    return
