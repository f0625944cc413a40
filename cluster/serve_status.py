"""The state of a deployment's replicas, as Serve reports it."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal, TypeVar

import ray
from ray import serve
from ray.serve._private.common import ReplicaID, ReplicaState
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, DeploymentStatus, DeploymentStatusOverview

from cluster.serve_replicas import Replicas, read_replicas

T = TypeVar("T")

SERVE_NAMESPACE = "serve"  # where Serve names its actors
STATUS_SECONDS = 3.0  # for Serve's controller to answer


class ServeStatus:
    """As Serve's controller says: requests go by what this process was told of its changes, as long
    as it was.
    """

    def __init__(self, replicas: DeploymentHandle[Any]) -> None:
        self._replicas = replicas
        self._asking = ThreadPoolExecutor(1, thread_name_prefix="asking")  # one: the controller may not answer

    async def are_running(self) -> bool:
        """Whether any replica is."""
        return bool(await self.num_running())

    async def num_running(self) -> int | None:
        """How many replicas are, whatever becomes of others; None without an answer."""
        status = await self._status()
        if status is None:
            return None
        num_running: int = status.replica_states.get(ReplicaState.RUNNING, 0)
        return num_running

    async def replicas(self) -> Replicas | None:
        """None without an answer, or if the deployment is not there."""
        with suppress(ray.exceptions.RayError, serve.exceptions.RayServeException, TimeoutError):
            return await self._ask(lambda: read_replicas(self._replicas.app_name, self._replicas.deployment_name))
        return None

    async def num_settled(self) -> int | None:
        """How many run; None while any starts, stops or is to be replaced, or without an answer."""
        status = await self._status()
        if status is None or status.status != DeploymentStatus.HEALTHY:
            return None
        num_running: int = status.replica_states.get(ReplicaState.RUNNING, 0)
        return num_running if sum(status.replica_states.values()) == num_running else None

    async def awaits_replicas(self) -> bool:
        """Whether the first one that runs, or any, is still to come; False for a deployment that is
        being deleted, or of which none is wanted.
        """
        try:
            status = await self._application()
        except (ray.exceptions.RayError, serve.exceptions.RayServeException, TimeoutError):
            return True
        deployment = None if status is None else status.deployments.get(self._replicas.deployment_name)
        if status is None or deployment is None or status.status == ApplicationStatus.DELETING:
            return False
        states = deployment.replica_states
        if deployment.status == DeploymentStatus.DOWNSCALING:
            return bool(states.get(ReplicaState.STARTING, 0))
        return not states.get(ReplicaState.RUNNING, 0) or bool(states.get(ReplicaState.STARTING, 0))

    async def is_deleted(self) -> bool:
        """Whether the application is; False without an answer."""
        try:
            status = await self._application()
        except (ray.exceptions.RayError, serve.exceptions.RayServeException, TimeoutError):
            return False
        return status is None or status.status == ApplicationStatus.DELETING

    async def _status(self) -> DeploymentStatusOverview | None:
        """None if Serve's controller does not answer."""
        try:
            status = await self._application()
        except (ray.exceptions.RayError, serve.exceptions.RayServeException, TimeoutError):
            return None
        return None if status is None else status.deployments.get(self._replicas.deployment_name)

    async def _application(self) -> ApplicationStatusOverview | None:
        """None if there is none. Raises RayError, RayServeException, TimeoutError."""
        status = await self._ask(serve.status)
        return status.applications.get(self._replicas.app_name)

    async def _ask(self, question: Callable[[], T]) -> T:
        """Raises TimeoutError, and what the question, which may block, raises."""
        return await asyncio.wait_for(
            asyncio.get_running_loop().run_in_executor(self._asking, question), STATUS_SECONDS
        )


def end_this_process() -> None:
    """At once, as a failed one: Serve replaces it."""
    os._exit(1)


def running_replicas(replicas: DeploymentHandle[Any]) -> set[str] | None:
    """The names of the replicas that Serve has told this process of; None if that cannot be known.

    Serve keeps the knowledge to itself, so it is looked up where Serve has it.
    """
    router: Any = getattr(replicas, "_router", None)
    try:
        return {replica.to_full_id_str() for replica in list(router._asyncio_router._request_router.curr_replicas)}
    except AttributeError:
        return None


def deployments_of(app_name: str, kind: str) -> list[DeploymentHandle[Any]]:
    """Handles of an application's deployments of this name, or of several that begin with it and a
    hyphen.
    """
    names = serve.status().applications[app_name].deployments
    return [
        serve.get_deployment_handle(name, app_name)
        for name in sorted(names)
        if name == kind or name.startswith(f"{kind}-")
    ]


def count_call(replicas: DeploymentHandle[Any], replica: str, change: Literal[1, -1]) -> None:
    """Have Serve count a call that is made past its router: it scales deployments by the number of
    open ones, and shows them in its metrics. Where Serve counts is looked up like
    `running_replicas`; not found, nothing is counted.
    """
    router: Any = getattr(replicas, "_router", None)
    with suppress(AttributeError, AssertionError):
        metrics = router._asyncio_router._metrics_manager
        number = ReplicaID.from_full_id_str(replica)
        if change == 1:
            metrics.inc_num_running_requests_for_replica(number)
        else:
            metrics.dec_num_running_requests_for_replica(number)


def kill_replica(name: str) -> None:
    """End its process; of no effect if it has gone."""
    with suppress(ValueError):
        ray.kill(ray.get_actor(name, namespace=SERVE_NAMESPACE))
