"""A port that cannot be listened on."""

import socket
from pathlib import Path

import pytest

from cluster.cli import main

DEMO = Path(__file__).resolve().parents[3] / "configs" / "demo"


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for command in (["serve", str(DEMO)], ["demo"]):
            line = fails(capsys, *command, "--port", port)
            assert line == (
                f"squadron {command[0]}: cannot listen on 127.0.0.1:{port}: Address already in use; choose "
                "another with --port"
            )
