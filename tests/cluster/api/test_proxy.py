"""What Serve's proxies are set up with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import uvicorn.protocols.http.auto
import yaml
from ray.serve.schema import ServeDeploySchema

from cluster.api import proxy
from cluster.api.edge.connection import Connection
from cluster.api.proxy import CONTROLLER_OPTIONS

FILES = sorted((Path(__file__).resolve().parents[3] / "configs" / "serve").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_configuration_files_set_the_proxies_up(path: Path) -> None:
    options = ServeDeploySchema.model_validate(yaml.safe_load(path.read_text())).controller_options
    assert options is not None and options.model_dump() == CONTROLLER_OPTIONS


def test_serve_reads_what_its_controller_is_given() -> None:
    program = """if True:
        from ray.serve._private import constants
        print(constants.RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH)
        print(constants.PROXY_HEALTH_CHECK_PERIOD_S, constants.PROXY_HEALTH_CHECK_TIMEOUT_S)
    """
    environment = os.environ | CONTROLLER_OPTIONS["runtime_env"]["env_vars"]
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["cluster.api.proxy:set_up", "0.2", "5.0"], done.stderr


@pytest.mark.parametrize("is_gateway", [True, False])
def test_a_gateways_own_connections_are_left_to_it(monkeypatch: pytest.MonkeyPatch, is_gateway: bool) -> None:
    """Serve sets its server up last, when the gateway has chosen those that refuse early."""
    chosen = type("Chosen", (Connection,), {})
    monkeypatch.setattr(uvicorn.protocols.http.auto, "AutoHTTPProtocol", chosen)
    monkeypatch.setattr(uvicorn, "Server", uvicorn.Server)
    monkeypatch.setattr(proxy, "is_gateway", lambda: is_gateway)
    proxy.set_up()
    assert uvicorn.protocols.http.auto.AutoHTTPProtocol is (chosen if is_gateway else Connection)
