"""A deployment's replicas one by one, as Serve's controller has them, not only their numbers."""

from collections import Counter
from dataclasses import dataclass

from ray.serve._private.common import ReplicaState
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeInstanceDetails


@dataclass(frozen=True, slots=True)
class Replicas:
    """By what Serve calls them."""

    running: frozenset[str]
    full_nodes: frozenset[str]  # ids of nodes that may have no further one (max_replicas_per_node)


def serve_details() -> ServeInstanceDetails:
    """Of all applications. Asks the controller, which blocks: RayError, RayServeException."""
    return ServeInstanceDetails(**_get_global_client().get_serve_details())


def read_replicas(app_name: str, deployment_name: str) -> Replicas | None:
    """None if the deployment is not there. Asks the controller, which blocks; raises RayError,
    RayServeException.
    """
    application = serve_details().applications.get(app_name)
    deployment = None if application is None else application.deployments.get(deployment_name)
    if deployment is None:
        return None
    running = [each.replica_id for each in deployment.replicas if each.state == ReplicaState.RUNNING]
    most = deployment.deployment_config.max_replicas_per_node
    on_nodes = Counter(each.node_id for each in deployment.replicas if each.node_id is not None)
    full = [node for node, number in on_nodes.items() if isinstance(most, int) and number >= most]
    return Replicas(frozenset(running), frozenset(full))
