"""Who hears whom, in this process; between nodes it is tried in `test_diagnosis.py`."""

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cluster.doctor.checks import ports
from cluster.doctor.checks.ports import Listener, check_reach, hear, hear_all
from tests.cluster.doctor.made import nodes_with
from tests.listeners import IPV6_LOOPBACK, listeners_of, needs_ipv6

HOST = "127.0.0.1"


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener(HOST)
    yield listener
    listener.close()


def test_it_listens_on_the_nodes_address_alone() -> None:
    before = set(listeners_of(os.getpid()))
    listener = Listener("127.0.0.2")  # an address that is not what anybody would take by default
    try:
        (new,) = set(listeners_of(os.getpid())) - before
        assert (new.host, new.port) == ("127.0.0.2", listener.port())
    finally:
        listener.close()


def test_all_others_are_heard_however_many_they_are(listener: Listener) -> None:
    targets = [(HOST, listener.port())] * 300
    for _ in range(2):  # those that come late, too
        assert hear_all(targets) == [""] * 300


@needs_ipv6
def test_the_nodes_address_may_be_of_ipv6() -> None:
    listener = Listener(IPV6_LOOPBACK)
    assert hear((IPV6_LOOPBACK, listener.port())) == ""
    listener.close()


def test_what_is_not_heard(listener: Listener) -> None:
    port = listener.port()
    listener.close()
    assert "Connection refused" in hear((HOST, port))
    with socket.create_server((HOST, 0)) as other, ThreadPoolExecutor(1) as pool:
        heard = pool.submit(hear, other.getsockname())
        connection, _ = other.accept()
        with connection:
            connection.sendall(b"220 mail.example")
        assert heard.result() == "something else listens there, which says b'220 mail.exampl'"


class Nodes:
    """In place of Ray: a call gives what its node is to answer."""

    def __init__(self, heard: dict[str, Any]) -> None:
        self.heard = heard
        self.num_calls = 0
        self.killed: list[Any] = []

    def on_node(self, node_id: str, function: Any) -> Any:
        return Call(self, node_id, function.__name__)

    def results(self, calls: list[Any], seconds: float) -> list[tuple[Any, str]]:
        return [(call, "") for call in calls]


class Call:
    def __init__(self, nodes: Nodes, node_id: str, name: str) -> None:
        self._nodes, self._node_id, self._name = nodes, node_id, name
        self.port = self

    def remote(self, *args: Any) -> Any:
        if self._name == "hear_all":
            self._nodes.num_calls += 1
            return [self._nodes.heard.get(self._node_id, "") for _ in args[0]]
        if not args:  # of a listener's port
            return 4001
        return self


def test_on_a_hundred_nodes_each_is_asked_once_and_says_it_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes({"node 7": "timed out"})
    monkeypatch.setattr(ports, "on_node", nodes.on_node)
    monkeypatch.setattr(ports, "results", nodes.results)
    monkeypatch.setattr(ports.ray, "kill", nodes.killed.append)
    (found,) = check_reach(nodes_with({f"node {number}": {} for number in range(100)}))
    assert found.state == "failure" and found.text.endswith("timed out; and 96 more")
    assert nodes.num_calls == 100 and len(nodes.killed) == 100
