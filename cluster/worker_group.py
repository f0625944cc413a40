"""One epoch's workers: Ray actors that are started together, serve steps together and go together."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.actor import Loaded, Meeting, WorkerActor
from cluster.channel import LOOPBACK, Connection, Listener
from cluster.placement import Node, Placement, locate
from cluster.step_channel import StepChannel
from engine.config import EngineConfig
from engine.errors import InvalidConfig, SquadronError, WorkerLost, in_a_line
from engine.worker.capacity import make_capacity, smallest

logger = logging.getLogger("squadron.executor")

CONNECT_SECONDS = 30.0
KILL_SECONDS = 10.0


class WorkerGroup:
    """`steps` is the way to the workers, `capacity` what they can hold, `pids` their process ids, on their nodes."""

    def __init__(self, config: EngineConfig, placement: Placement) -> None:
        """Start them; raises InvalidConfig or WorkerLost, and leaves nothing behind then."""
        self._actors: list[Any] = []
        try:
            nodes = locate(placement)
            self._start_actors(placement)
            loaded = self._load(config, nodes)
            self.pids = [worker.pid for worker in loaded]
            num_gpu_blocks, num_cpu_blocks = smallest([(each.num_gpu_blocks, each.num_cpu_blocks) for each in loaded])
            seconds = self._call(lambda actor, rank: actor.initialize_cache.remote(num_gpu_blocks, num_cpu_blocks))
            self.capacity = make_capacity(config, num_gpu_blocks, num_cpu_blocks, max(seconds))
            self.steps = self._connect(nodes)
        except BaseException:
            self._kill_actors()
            raise

    def kill(self) -> None:
        """Kill every worker; returns when they are gone."""
        self.steps.stop()
        self._kill_actors()
        if not self.steps.wait_for_ends(KILL_SECONDS):
            logger.warning("workers are still there %.0f s after they were killed", KILL_SECONDS)
        self.steps.close()

    def _start_actors(self, placement: Placement) -> None:
        actor_class = ray.remote(WorkerActor)
        for bundle in placement.bundles:
            options = actor_class.options(
                num_cpus=placement.num_cpus,
                num_gpus=placement.num_gpus,
                scheduling_strategy=PlacementGroupSchedulingStrategy(placement.group, bundle),
            )
            self._actors.append(options.remote())

    def _load(self, config: EngineConfig, nodes: list[Node]) -> list[Loaded]:
        is_one_node = len(set(nodes)) == 1
        hosts = [LOOPBACK if is_one_node else node.address for node in nodes]
        num_ranks = Counter(nodes)
        meeting = Meeting(hosts[0], _result(0, self._actors[0].open_store.remote(hosts[0])))
        loaded: list[Loaded] = self._call(
            lambda actor, rank: actor.load.remote(config, rank, hosts[rank], meeting, num_ranks[nodes[rank]])
        )
        for rank, (node, worker) in enumerate(zip(nodes, loaded, strict=True)):
            logger.info("worker %d, process %d on node %s: %s", rank, worker.pid, node.address, worker.report)
        return loaded

    def _connect(self, nodes: list[Node]) -> StepChannel:
        here = ray.get_runtime_context().get_node_id()
        listener = Listener(None if all(node.id == here for node in nodes) else ray.util.get_node_ip_address())
        try:
            runs = [actor.run.remote(listener.address, listener.token, rank) for rank, actor in enumerate(self._actors)]
            steps = StepChannel(_accept(listener, runs), [node.address for node in nodes])
        finally:
            listener.close()
        for rank, run in enumerate(runs):
            run.future().add_done_callback(partial(_report_end, steps, rank))
        return steps

    def _call(self, start: Callable[[Any, int], Any]) -> list[Any]:
        """start(actor, rank) on every rank, and the results; the first failure ends the wait for the others."""
        calls = [start(actor, rank) for rank, actor in enumerate(self._actors)]
        waiting = list(calls)
        while waiting:
            (ended,), waiting = ray.wait(waiting)
            _result(calls.index(ended), ended)
        return [_result(rank, call) for rank, call in enumerate(calls)]

    def _kill_actors(self) -> None:
        for actor in self._actors if ray.is_initialized() else []:
            ray.kill(actor)


def _accept(listener: Listener, runs: list[Any]) -> list[Connection]:
    """A connection of each rank, in order of rank."""
    connections: dict[int, Connection] = {}
    deadline = time.monotonic() + CONNECT_SECONDS
    while len(connections) < len(runs):
        try:
            name, connection = listener.accept(time.monotonic() + 1)
            connections[int(name)] = connection
        except TimeoutError:
            missing = min(set(range(len(runs))) - connections.keys())
            ended, _ = ray.wait(runs, timeout=0)
            if ended:
                _result(runs.index(ended[0]), ended[0])
            if time.monotonic() > deadline:
                raise WorkerLost(missing, f"it did not connect within {CONNECT_SECONDS:.0f} s") from None
    return [connections[rank] for rank in range(len(runs))]


def _report_end(steps: StepChannel, rank: int, run: "Future[None]") -> None:
    """Called by Ray when a worker's `run` has ended, which it does with its process only."""
    error = run.exception()
    steps.lose(rank, _reason(error) if isinstance(error, RayError) else "its loop ended")


def _result(rank: int, call: Any) -> Any:
    """The result of a rank's call; raises InvalidConfig or WorkerLost for whatever the call raised."""
    try:
        return ray.get(call)
    except RayError as error:
        raise _cause(rank, error) from None


def _cause(rank: int, error: RayError) -> SquadronError:
    if isinstance(error, RayTaskError) and isinstance(error.cause, InvalidConfig):
        return InvalidConfig(str(error.cause))
    return WorkerLost(rank, _reason(error))


def _reason(error: RayError) -> str:
    if isinstance(error, RayTaskError):
        return in_a_line(error.cause)
    if isinstance(error, RayActorError) and error.actor_init_failed:
        # A traceback follows, and what was raised is its last line.
        return str(error).strip().splitlines()[-1]
    return in_a_line(error)
