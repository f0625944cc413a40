"""A Ray address that does not answer, and a Ray that does not start."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray._private import services

from cluster.cli import main
from cluster.launch.node.connecting import start
from engine.errors import InvalidConfig

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
    assert main(["serve", str(DEMO), "--port", "0", "--ray-address", address]) == 2
    assert capsys.readouterr().err == (
        f"squadron serve: nothing answers at --ray-address {address}; check that the cluster is up and the "
        "port that of `ray start`\n"
    )


def test_a_ray_address_where_something_else_listens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes connections, and says nothing."""
    monkeypatch.setattr("cluster.launch.node.connecting.GRPC_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert main(["serve", str(DEMO), "--port", "0", "--ray-address", address]) == 2
    assert capsys.readouterr().err == (
        f"squadron serve: what listens at --ray-address {address} did not answer as Ray does within 1 s; "
        "check that the port is that of `ray start`\n"
    )


@pytest.mark.parametrize("is_late", [False, True])
def test_a_node_of_ray_s_is_looked_for_as_long_as_we_say(monkeypatch: pytest.MonkeyPatch, is_late: bool) -> None:
    """Ray gives up at the first look that fails after half a minute."""
    node, looks = {"node": "there"}, iter([RuntimeError("not there"), RuntimeError("not there"), None])

    def look(*_: object) -> dict[str, str]:
        if error := next(looks):
            raise error
        return node

    monkeypatch.setattr(services, "get_node", look)
    monkeypatch.setattr("ray.init", lambda **_: services.get_node("address", "id"))
    monkeypatch.setattr("cluster.launch.node.connecting.LOOK_SECONDS", 0.0)
    if is_late:
        monkeypatch.setattr("cluster.launch.node.connecting.START_SECONDS", -1.0)
        with pytest.raises(InvalidConfig, match="not there"):
            start()
    else:
        assert start() is node
    assert services.get_node is look


def test_ray_that_does_not_start_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """For this, Ray raises a bare Exception."""

    def fail(**options: object) -> None:
        raise Exception("The current node timed out during startup. This could happen because\nof much.")

    monkeypatch.setattr("ray.init", fail)
    with pytest.raises(
        InvalidConfig, match=r"too busy or too full: The current node timed out during startup\. [\w ]+$"
    ):
        start()
