"""What Serve's proxies are set up with, and what a gateway says where they are not."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema
from starlette.types import Receive, Scope, Send

from cluster.api.proxy import CONTROLLER_OPTIONS, BareProxyWarning, ProxyEdge

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


async def nothing(*_: object) -> None:
    """An application, and a server."""


async def pass_on(scope: Scope) -> Scope:
    """What an application behind a proxy is given."""
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)

    await ProxyEdge(app)(scope, nothing, nothing)
    (passed,) = seen
    return passed


async def test_only_serves_own_headers_are_taken_out() -> None:
    headers = [(b"x-session-id", b"1"), (b"accept", b"*/*"), (b"x-request-timeout-seconds", b"1")]
    passed = await pass_on({"type": "http", "path": "/", "headers": headers})
    assert passed["headers"] == [(b"accept", b"*/*")]


async def test_a_gateway_says_once_that_a_proxy_was_not_set_up(caplog: pytest.LogCaptureFixture) -> None:
    bare: Scope = {"type": "http", "path": "/", "headers": []}
    gateway = BareProxyWarning(nothing)
    with caplog.at_level(logging.WARNING, logger="ray.serve"):
        await gateway(await pass_on(bare), nothing, nothing)
        assert caplog.messages == []
        await gateway(bare, nothing, nothing)
        await gateway(bare, nothing, nothing)
    (message,) = caplog.messages
    assert "without RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=cluster.api.proxy:set_up" in message
