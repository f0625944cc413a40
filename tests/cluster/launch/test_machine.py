"""What this machine has."""

import socket

import pytest

from cluster.launch.machine import check_port, free_port, num_gpus
from engine.errors import InvalidConfig


def test_hidden_gpus_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert num_gpus() == 0


def test_a_port_is_free_or_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidConfig, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)


@pytest.mark.parametrize("port", [-1, 0, 65536, 99999999])
def test_what_is_no_port(port: int) -> None:
    with pytest.raises(InvalidConfig, match=f"port={port} is not a number from 1 to 65535"):
        check_port("127.0.0.1", port)


def test_the_first_free_port_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidConfig, match=f"every port from {port} to {port} is taken"):
            free_port("127.0.0.1", port, port)
    assert free_port("127.0.0.1", port, port) == port
