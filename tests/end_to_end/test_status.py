"""`squadron status` of a server, by HTTP, and of its Ray cluster."""

import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from ray import serve
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import DeploymentStatus, ServeInstanceDetails

from cluster.cli import main
from cluster.commands.operating.serve_application import of_serve
from cluster.launch.packages import ROOT
from cluster.serve_replicas import serve_details
from tests.end_to_end.conftest import Server
from tests.end_to_end.test_command import SQUADRON
from tests.end_to_end.test_replica_lost import wait_until


def test_what_a_server_tells(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    def told() -> dict[str, str]:
        assert main(["status", "--base-url", server.url]) == 0
        return dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())

    # A request that an earlier test left takes a moment to end.
    wait_until(lambda: told()["requests"] == "0 running, 0 waiting, 0 swapped", "a request runs or waits")
    lines = told()
    assert lines["server"].startswith(f"{server.url}, squadron ")
    assert lines["health"] == "ok"
    assert lines["models"].split(", ")[0] == "demo"
    assert lines["engines"].startswith("1 of 1 can answer; cache in use: ")


def test_what_a_cluster_tells(server: Server) -> None:
    command = [*SQUADRON, "status", "--ray-address", server.ray.address]
    environment = os.environ | server.ray.environment
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "node      127.0.0.1: " in done.stdout and " CPU, 0 GPU" in done.stdout
    assert "app       squadron: RUNNING\n" in done.stdout
    assert "  EngineDeployment: HEALTHY, 1 RUNNING\n" in done.stdout
    assert "  GatewayDeployment: HEALTHY, 1 RUNNING\n" in done.stdout


@pytest.fixture
def others(server: Server) -> Iterator[None]:
    """Applications beside the server's, until the test is over."""
    yield
    for name in ("well", "ill"):
        serve.delete(name)


def deployed(kind: type, name: str, **options: Any) -> None:
    given = {"ray_actor_options": {"num_cpus": 0.1}, "max_constructor_retry_count": 1} | options
    serve.run(serve.deployment(kind, name=name, **given).bind(), name=name, route_prefix=None)  # type: ignore[call-overload]


def only(*names: str) -> ServeInstanceDetails:
    """What Serve tells of these applications, without its proxies."""
    details = serve_details()
    applications = {name: details.applications[name] for name in names}
    return details.model_copy(update={"applications": applications, "proxies": {}})


@pytest.mark.usefixtures("others")
def test_applications_with_their_deployments() -> None:
    class Well:
        pass

    class Ill:
        def __init__(self) -> None:
            raise ValueError("no weights are there")

    assert of_serve(only()) == (["serve     no application"], False)
    deployed(Well, "well", autoscaling_config=AutoscalingConfig(min_replicas=1, max_replicas=4))
    lines = ["app       well: RUNNING", "  well: HEALTHY, 1 RUNNING; 1 wanted, of 1 to 4 by load"]
    details = only("well")
    assert of_serve(details) == (lines, True)
    deployments = details.applications["well"].deployments
    failing = {"status": DeploymentStatus.UNHEALTHY, "message": "a replica\nfailed its health check"}
    deployments["well"] = deployments["well"].model_copy(update=failing)
    ill = "  well: UNHEALTHY, 1 RUNNING; 1 wanted, of 1 to 4 by load: failed its health check"
    assert of_serve(details) == ([lines[0], ill], False)
    with pytest.raises(RuntimeError):
        deployed(Ill, "ill")
    wait_until(
        lambda: of_serve(only("ill")).lines[1].startswith("  ill: DEPLOY_FAILED, no replica; 1 wanted"),
        "it still has a replica",
    )
    told = of_serve(only("well", "ill"))
    assert told.lines[:2] == lines and not told.is_well
    assert told.lines[2].startswith("app       ill: DEPLOY_FAILED: ")
