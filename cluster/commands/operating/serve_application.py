"""What Serve runs on a cluster, as lines for people."""

from collections import Counter

from ray.serve._private.common import ReplicaState
from ray.serve.schema import (
    ApplicationDetails,
    ApplicationStatus,
    DeploymentDetails,
    DeploymentStatus,
    ServeInstanceDetails,
)

from cluster.commands.operating.server_status import Told

ILL = (DeploymentStatus.UNHEALTHY, DeploymentStatus.DEPLOY_FAILED)


def of_serve(details: ServeInstanceDetails) -> Told:
    """All is well if there are applications, and every one runs without an unhealthy deployment."""
    lines = [f"proxy     {proxy.status.value} on node {node[:8]}" for node, proxy in details.proxies.items()]
    for name, application in details.applications.items():
        lines.append(f"app       {name}: {application.status.value}{_last_line(application.message)}")
        lines += map(_of_deployment, application.deployments.values())
    if not details.applications:
        lines.append("serve     no application")
    return Told(lines, bool(details.applications) and all(map(_is_well, details.applications.values())))


def _is_well(application: ApplicationDetails) -> bool:
    are_ill = [each.status in ILL for each in application.deployments.values()]
    return application.status == ApplicationStatus.RUNNING and not any(are_ill)


def _of_deployment(deployment: DeploymentDetails) -> str:
    counts = Counter(replica.state for replica in deployment.replicas)
    states = ", ".join(f"{count} {state.value}" for state, count in counts.items()) or "no replica"
    target, scaling = deployment.target_num_replicas, deployment.deployment_config.autoscaling_config
    wanted = f"; {target} wanted" if target != counts[ReplicaState.RUNNING] else ""
    if isinstance(scaling, dict):
        wanted = f"; {target} wanted, of {scaling['min_replicas']} to {scaling['max_replicas']} by load"
    why = _last_line(deployment.message) if deployment.status in ILL else ""
    return f"  {deployment.name}: {deployment.status.value}, {states}{wanted}{why}"


def _last_line(message: str) -> str:
    lines = message.strip().splitlines()
    return f": {lines[-1]}" if lines else ""
