"""A port that cannot be listened on."""

import socket
from pathlib import Path

import pytest

from tests.cluster.commands.failing import fails

DEMO = Path(__file__).resolve().parents[3] / "configs" / "demo"


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for command in (["serve", str(DEMO)], ["demo"]):
            line = fails(capsys, *command, "--port", port)
            assert line == (
                f"squadron {command[0]}: cannot listen on 127.0.0.1:{port}: Address already in use; choose "
                "another with --port"
            )
