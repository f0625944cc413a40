"""A Ray address that does not answer."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.cli import main
from tests.end_to_end.conftest import free_port

DEMO = Path(__file__).resolve().parents[4] / "configs" / "demo"


@contextlib.contextmanager
def free_listener() -> Iterator[int]:
    """A port that somebody listens on within the context, and nobody after it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_ray_address_where_nobody_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Known before Ray is asked, which would try for minutes."""
    with free_listener() as port:
        pass
    address = f"127.0.0.1:{port}"
    assert main(["serve", str(DEMO), "--port", str(free_port()), "--ray-address", address]) == 2
    assert capsys.readouterr().err == (
        f"squadron serve: nothing answers at --ray-address {address}; check that the cluster is up and the "
        "port that of `ray start`\n"
    )


NOT = ["", "local", "nonsense", "ray://", "127.0.0.1:", ":6379", "a:0", "a:99999999", "a:-1"]


@pytest.mark.parametrize("address", NOT)
@pytest.mark.parametrize("command", ["status", "collect-env", "doctor"])
def test_what_is_no_ray_address(capsys: pytest.CaptureFixture[str], command: str, address: str) -> None:
    """Of some of them Ray would start a cluster of its own."""
    assert main([command, "--ray-address", address]) == 2
    said = f"squadron {command}: --ray-address {address!r} is neither HOST:PORT, nor ray://HOST:PORT, nor auto"
    assert capsys.readouterr().err == said + "\n"


def test_a_ray_address_of_a_name_that_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--ray-address", "a..b:6379"]) == 2
    assert "nothing answers at --ray-address a..b:6379" in capsys.readouterr().err


def test_a_ray_address_where_something_else_listens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes connections, and says nothing."""
    monkeypatch.setattr("cluster.launch.node.connecting.GRPC_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert main(["serve", str(DEMO), "--port", str(free_port()), "--ray-address", address]) == 2
    assert capsys.readouterr().err == (
        f"squadron serve: what listens at --ray-address {address} did not answer as Ray does within 1 s; "
        "check that the port is that of `ray start`\n"
    )
