"""`squadron status` of a Ray cluster without Serve, and with applications that run and do not."""

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from ray import serve
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import DeploymentStatus

from cluster.commands.operating.serve_application import of_serve
from cluster.launch.packages import ROOT
from cluster.launch.serve_calls import start_serve_alone
from cluster.serve_replicas import serve_details
from tests.cluster.several_nodes import several_nodes
from tests.end_to_end.test_command import SQUADRON

# Ray's own: `Cluster` leaves sockets open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with several_nodes([{"num_cpus": 2}]) as cluster:
        yield cluster


@pytest.fixture
def with_serve(cluster: Any) -> Iterator[None]:
    start_serve_alone()
    yield
    serve.shutdown()


class Well:
    pass


class Ill:
    def __init__(self) -> None:
        raise ValueError("no weights are there")


def deployed(kind: type, name: str, **options: Any) -> None:
    given = {"ray_actor_options": {"num_cpus": 0.1}, "max_constructor_retry_count": 1} | options
    serve.run(serve.deployment(kind, name=name, **given).bind(), name=name, route_prefix=None)  # type: ignore[call-overload]


def test_without_serve_nothing_is_well(cluster: Any) -> None:
    command = [*SQUADRON, "status", "--ray-address", cluster.address]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    node, serves = done.stdout.splitlines()
    assert node.startswith("node      ") and serves == "serve     is not running"


def test_applications_with_their_deployments(with_serve: None) -> None:
    assert of_serve(serve_details()) == (["serve     no application"], False)
    scaling = AutoscalingConfig(min_replicas=1, max_replicas=4)
    deployed(Well, "well", autoscaling_config=scaling)
    lines = ["app       well: RUNNING", "  well: HEALTHY, 1 RUNNING; 1 wanted, of 1 to 4 by load"]
    details = serve_details()
    assert of_serve(details) == (lines, True)
    deployments = details.applications["well"].deployments
    failing = {"status": DeploymentStatus.UNHEALTHY, "message": "a replica\nfailed its health check"}
    deployments["well"] = deployments["well"].model_copy(update=failing)
    ill = "  well: UNHEALTHY, 1 RUNNING; 1 wanted, of 1 to 4 by load: failed its health check"
    assert of_serve(details) == ([lines[0], ill], False)
    with pytest.raises(RuntimeError):
        deployed(Ill, "ill")
    told = of_serve(serve_details())
    assert told.lines[:2] == lines and not told.is_well
    assert told.lines[2].startswith("app       ill: DEPLOY_FAILED: ")
    assert told.lines[3].startswith("  ill: DEPLOY_FAILED, no replica; 1 wanted")
