"""Ports of a plan, some of which are taken on this machine."""

import socket
from dataclasses import replace
from typing import Any

import pytest

from cluster.doctor.checks import planned_ports
from cluster.doctor.checks.planned_ports import HEAD, all_taken, check_planned_ports
from cluster.doctor.finding import Finding
from cluster.doctor.need import Need
from cluster.workers.nodes import Node
from tests.cluster.doctor.made import GOOD, need, only

HOST = "127.0.0.1"


class Here:
    """In place of Ray: all nodes are this process."""

    def __init__(self, node_id: str, function: Any) -> None:
        self.remote = function


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned_ports, "on_node", Here)
    monkeypatch.setattr(planned_ports, "results", lambda calls, seconds: [(call, "") for call in calls])


def found(*needs: Need, **environment: str) -> list[Finding]:
    node = Node(GOOD.node_id, HOST, {"CPU": 8.0, HEAD: 1.0}, {})
    return list(check_planned_ports(needs, [replace(GOOD, environment=environment)], [node]))


def told_at(port: int, **more: object) -> Need:
    return need(device="cpu", kv_events_config={"enable_kv_cache_events": True, "endpoint": f"tcp://*:{port}", **more})


def test_whether_any_of_a_range_is_free() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        assert all_taken(HOST, [range(port, port + 1)]) == [True]
        assert all_taken(HOST, [range(port - 20, port + 1)]) == [False]
    assert all_taken(HOST, [range(port, port + 1)]) == [False]


def test_a_port_of_kv_events_that_another_program_has() -> None:
    """A router that listens there would hear that one."""
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        finding = only(found(told_at(port)), "warning")
        assert finding.text.startswith(f"port {port} of {HOST} is taken by another program, and KV events of demo")
        assert found(told_at(port, publisher="null")) == [] == found(need(device="cpu"))
        replays = told_at(0, replay_endpoint=f"tcp://*:{port}")
        only(found(replays), "warning")
    assert only(found(told_at(port)), "ok").text == "there are free ones for KV events of demo"


def test_ports_that_gateways_and_a_proxy_have_behind_haproxy() -> None:
    assert found(need(device="cpu"), RAY_SERVE_ENABLE_HA_PROXY="0") == []
    behind = {"RAY_SERVE_ENABLE_HA_PROXY": "1"}
    assert only(found(**behind), "ok").text == "there are free ones for Serve's own proxy, gateways"
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        chosen = {"RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(port)}
        finding = only(found(**behind, **chosen), "failure")
        assert finding.text == f"port {port} of {HOST} is taken, and wanted for Serve's own proxy"
