"""What Serve knows of a deployment's replicas, and their end."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve._private.common import ReplicaState
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import DeploymentStatus, DeploymentStatusOverview

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
        status = await self._status()
        return status is not None and bool(status.replica_states.get(ReplicaState.RUNNING, 0))

    async def num_settled(self) -> int | None:
        """How many run; None while any starts, stops or is to be replaced, or without an answer."""
        status = await self._status()
        if status is None or status.status != DeploymentStatus.HEALTHY:
            return None
        num_running: int = status.replica_states.get(ReplicaState.RUNNING, 0)
        return num_running if sum(status.replica_states.values()) == num_running else None

    async def _status(self) -> DeploymentStatusOverview | None:
        """None if Serve's controller does not answer."""
        try:
            asking = asyncio.get_running_loop().run_in_executor(self._asking, serve.status)
            status = await asyncio.wait_for(asking, STATUS_SECONDS)
            return status.applications[self._replicas.app_name].deployments[self._replicas.deployment_name]
        except (RayError, RayServeException, TimeoutError, KeyError):
            return None


def running_replicas(replicas: DeploymentHandle[Any]) -> set[str] | None:
    """The names of the replicas that Serve has told this process of; None if that cannot be known.

    Serve keeps the knowledge to itself, so it is looked up where Serve has it. Not found, all
    replicas are asked each time.
    """
    router: Any = getattr(replicas, "_router", None)
    try:
        return {replica.to_full_id_str() for replica in list(router._asyncio_router._request_router.curr_replicas)}
    except AttributeError:
        return None


def kill_replica(name: str) -> None:
    """End its process; of no effect if it has gone."""
    with suppress(ValueError):
        ray.kill(ray.get_actor(name, namespace=SERVE_NAMESPACE))
