"""The worker processes that keep their ranks' seats over epochs, warm spares to replace them, and
lookouts.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from cluster.workers.placement import Placement, free_resources, is_placed
from cluster.workers.processes.process import ProcessStopped, WorkerProcess, warn_of_loss
from cluster.workers.processes.watch import Watch
from cluster.workers.ray_errors import cause_of, reason_of
from engine.errors import WorkerLost

logger = logging.getLogger("squadron.executor")

DISMISSAL_SECONDS = 2.0  # for processes to exit when asked to
KILL_SECONDS = 10.0
START_SECONDS = 300.0  # for a placed process to start: an image may have to be fetched first
LOOK_SECONDS = 0.5  # between checks for further losses while workers start
AGAIN_SECONDS = (0.1, 5.0)  # until one that died as it started is replaced: the first time, and at most
PROGRESS_SECONDS = 5.0  # between log lines on what is waited for


class NoPlace(WorkerLost):
    """Ray found no node with room for a worker in time."""


class WorkerPool:
    """A process for each rank, and `num_spares` more on each node that has ranks. Used by one
    thread at a time.
    """

    def __init__(self, placement: Placement, num_spares: int, on_missing: Callable[[], None]) -> None:
        """`on_missing` is called, in any thread, when a spare or a lookout is lost: `stock` is
        needed.
        """
        self._placement = placement
        self._num_spares = num_spares
        self._on_missing = on_missing
        self._ranks: dict[int, WorkerProcess] = {}
        self._spares: list[tuple[str, WorkerProcess]] = []  # with the id of the node that it is for
        self._lookouts: dict[str, WorkerProcess] = {}  # by machine
        self._warming: list[threading.Thread] = []
        self._watch = Watch()

    def fill(self, timeout: float) -> list[WorkerProcess]:
        """Processes for all ranks: existing ones, spares of a lost one's node, or new ones. They
        are running and watched.

        Raises WorkerLost or InvalidConfig if a process does not start, NoPlace if one finds no room
        for `timeout` seconds.
        """
        started = told = time.monotonic()
        again, longest = AGAIN_SECONDS
        while True:
            processes = [self._replace_lost(rank) for rank in range(len(self._placement.bundles))]
            introductions = [process.started.introduction for process in processes]
            _, waiting = ray.wait(introductions, num_returns=len(introductions), timeout=LOOK_SECONDS)
            if not waiting:
                self._attach_all(processes)
                if not any(process.is_lost for process in processes):
                    return processes
                time.sleep(again)  # Ray may fail each at once
                again = min(2 * again, longest)
            for process in processes:
                if process.started.introduction in waiting:
                    process.started.doubt()
            now = time.monotonic()
            if now > started + (START_SECONDS if is_placed(self._placement) else timeout):
                missing = len(waiting) or sum(process.is_lost for process in processes)
                raise NoPlace(
                    0, f"{missing} of {len(processes)} workers could not be placed within {now - started:.0f} s"
                )
            if now > told + PROGRESS_SECONDS:
                told = now
                logger.info("waiting for %d of %d workers; free are %s", len(waiting), len(processes), free_resources())

    def stock(self) -> None:
        """Start the spares and the lookouts that are missing, in the background."""
        self._spares = [(node_id, spare) for node_id, spare in self._spares if not spare.is_lost]
        bundles = {process.facts.node_id: process.bundle for process in self._ranks.values() if not process.is_lost}
        for node_id, bundle in bundles.items():
            for _ in range(self._num_spares - sum(there == node_id for there, _ in self._spares)):
                spare = WorkerProcess(self._placement, bundle, "spare")
                self._spares.append((node_id, spare))
                self._start_warming(spare)
        if self._num_spares == 0:
            self._post_lookouts()

    def end(self, processes: Sequence[WorkerProcess]) -> None:
        """Kill processes and wait until those of this machine are gone; Ray ends the others."""
        for process in processes:
            process.kill()
        deadline = time.monotonic() + KILL_SECONDS
        for process in processes:
            if process.is_on_this_machine and not process.ended.wait(max(deadline - time.monotonic(), 0)):
                logger.warning("process %d still exists %.0f s after it was killed", process.facts.pid, KILL_SECONDS)

    def close(self) -> None:
        """Ask every process to exit, and kill those that take too long."""
        processes = [*self._ranks.values(), *[spare for _, spare in self._spares], *self._lookouts.values()]
        for process in processes:
            process.dismiss()
        deadline = time.monotonic() + DISMISSAL_SECONDS
        for process in processes:
            if process.is_on_this_machine:
                process.ended.wait(max(deadline - time.monotonic(), 0))
        self.end(processes)
        for thread in self._warming:
            thread.join(KILL_SECONDS)
        self._watch.close()

    def _replace_lost(self, rank: int) -> WorkerProcess:
        """The rank's process, or a new one if it is lost: the deaths of a node's processes may be
        noticed one by one.
        """
        process = self._ranks.get(rank)
        if process is None or process.is_lost:
            bundle = self._placement.bundles[rank]
            self._ranks[rank] = process = self._take_spare(process) or WorkerProcess(self._placement, bundle)
        return process

    def _attach_all(self, processes: Sequence[WorkerProcess]) -> None:
        for rank, process in enumerate(processes):
            try:
                self._attach(process)
            except RayError as error:
                process.kill()
                if isinstance(error, RayTaskError) or (isinstance(error, RayActorError) and error.actor_init_failed):
                    raise cause_of(rank, error) from None
                # Killed as it started, perhaps because its node died or lacked memory: the next one
                # may be placed elsewhere.
                logger.warning("worker %d died while it started: %s", rank, reason_of(error))
            except ProcessStopped as error:
                process.kill()
                logger.warning("worker %d is replaced while it starts: %s", rank, error)
            except OSError as error:
                process.kill()
                raise WorkerLost(rank, f"it did not connect to the driver: {error}") from None

    def _take_spare(self, lost: WorkerProcess | None) -> WorkerProcess | None:
        """A spare on the lost process' node, possibly one that is still starting; None if there is
        none.
        """
        if lost is None or not lost.is_attached:
            return None
        for index, (node_id, spare) in enumerate(self._spares):
            if node_id == lost.facts.node_id and not spare.is_lost:
                del self._spares[index]
                spare.on_loss = warn_of_loss
                return spare
        return None

    def _post_lookouts(self) -> None:
        """Start a lookout beside each rank that is alone on a machine other than the driver's: only
        a process of the same machine can see that it is stopped.
        """
        ranks = [process for process in self._ranks.values() if not (process.is_lost or process.is_on_this_machine)]
        num_ranks = Counter(process.facts.machine for process in ranks)
        alone = {process.facts.machine: process for process in ranks if num_ranks[process.facts.machine] == 1}
        for machine, lookout in list(self._lookouts.items()):
            if lookout.is_lost or machine not in alone:
                if not lookout.is_lost:
                    lookout.dismiss()
                del self._lookouts[machine]
        for machine, process in alone.items():
            if machine not in self._lookouts:
                lookout = WorkerProcess(self._placement, process.bundle, "lookout")
                self._lookouts[machine] = lookout
                self._start_warming(lookout)

    def _start_warming(self, process: WorkerProcess) -> None:
        process.on_loss = self._lose_idle
        thread = threading.Thread(target=self._warm, args=(process,), name="spare", daemon=True)
        thread.start()
        self._warming = [*filter(threading.Thread.is_alive, self._warming), thread]

    def _warm(self, spare: WorkerProcess) -> None:
        """Runs in a thread of its own, until the spare is ready: that takes as long as importing
        torch.
        """
        try:
            while not ray.wait([spare.started.introduction], timeout=LOOK_SECONDS)[0]:
                spare.started.doubt()
            self._attach(spare)
        except (RayError, OSError) as error:
            spare.lose(f"it did not start: {reason_of(error)}")

    def _lose_idle(self, reason: str) -> None:
        warn_of_loss(reason)
        self._on_missing()

    def _attach(self, process: WorkerProcess) -> None:
        if process.attach():
            self._watch.add(process)
