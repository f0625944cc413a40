"""A cluster of three nodes on this machine, looked at by real tasks, actors and collectives."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util.placement_group import placement_group_table

from cluster.doctor.checks import ports
from cluster.doctor.checks.collective import check_collective
from cluster.doctor.checks.folders import check_folders
from cluster.doctor.checks.ports import check_http, check_reach
from cluster.doctor.diagnosis import diagnose
from cluster.doctor.facts.nodes import ask_nodes, on_node, results
from cluster.doctor.finding import Finding
from cluster.launch.packages import ROOT
from cluster.workers.nodes import alive_nodes
from engine.errors import InvalidConfig
from tests.cluster.doctor.made import need, only
from tests.cluster.several_nodes import several_nodes
from tests.end_to_end.test_command import SQUADRON

# Ray's own: `Cluster` leaves sockets open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    nodes = [{"num_cpus": 2}, {"num_cpus": 1, "num_gpus": 2}, {"num_cpus": 1, "labels": {"region": "eu"}}]
    with several_nodes(nodes) as cluster:
        yield cluster


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.long
def test_all_checks_of_a_plan(cluster: Any, free_port: int) -> None:
    """All nodes are this machine; what is wrong is that two GPUs are only said to be there."""
    needs = [need(2, device="cpu", tensor_parallel_size=2, pipeline_parallel_size=2)]
    found = {finding.check: finding for finding in diagnose(needs, free_port)}
    failures = {check: finding for check, finding in found.items() if finding.state == "failure"}
    assert failures.keys() == {"gpus"}
    assert "Ray counts 2 GPU(s)" in failures["gpus"].text
    assert found["nodes"].text.startswith("3 answered: ")
    assert found["versions"].text.endswith("on 3 nodes")
    assert found["ports"].text.startswith("3 nodes reach each other")
    assert found["room"].text.startswith("demo: 2 engine(s) of 4 rank(s); ")
    assert found["collective"].text.startswith("4 ranks on ") and "(cpu)" in found["collective"].text
    states = {group["state"] for group in placement_group_table().values()}
    assert states == {"REMOVED"}, "everything was given back"


def test_what_serving_would_refuse_there_is_refused(cluster: Any, free_port: int) -> None:
    four = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "quantization": "fp8"}
    with pytest.raises(InvalidConfig, match="quantization=fp8 is not computed on CPU"):
        list(diagnose([need(**four)], free_port))  # the cluster has two GPUs
    assert need(max_gpus=4, **four).settled().config.device == "cuda"


def test_nodes_without_the_models_folder_are_named(cluster: Any, tmp_path: Path) -> None:
    """All nodes are this machine: where an engine may be is told by labels."""
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "configs" / "demo", folder)
    needs = [need(model=str(folder), node_labels={"region": "eu"}, device="cpu"), need(device="cpu")]
    assert f"{folder}" in only(list(check_folders(needs, alive_nodes())), "ok").text
    shutil.rmtree(folder)
    found = [finding for finding in check_folders(needs, alive_nodes()) if finding.state == "failure"]
    assert [str(folder) in finding.text for finding in found] == [True]


@pytest.mark.long
def test_without_a_plan_every_node_exchanges(cluster: Any) -> None:
    finding = only(list(check_collective(None, alive_nodes())), "ok")
    assert finding.text.startswith("3 ranks on ")


def test_a_rank_that_cannot_compute_there_is_a_failure(cluster: Any) -> None:
    """The GPUs are only said to be there."""
    config = need(device="cuda", tensor_parallel_size=2).config
    finding = only(list(check_collective(config, alive_nodes())), "failure")
    assert "no CUDA device can be seen here" in finding.text and "NCCL_DEBUG" in finding.remedy


def test_a_lack_of_room_is_no_failure_of_the_network(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.doctor.checks.collective.PLACE_SECONDS", 1)
    config = need(device="cuda", pipeline_parallel_size=4).config
    assert "no room" in only(list(check_collective(config, alive_nodes())), "warning").text


def test_a_node_that_cannot_answer_is_named(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(node_id: str, address: str) -> None:
        raise ModuleNotFoundError("No module named 'cluster'")

    monkeypatch.setattr("cluster.doctor.facts.nodes.read_node", fail)
    nodes = alive_nodes()
    facts, findings = ask_nodes(nodes)
    assert facts == [] and len(findings) == 3
    assert findings[0].text == f"{nodes[0].address} cannot run Squadron: ModuleNotFoundError: No module named 'cluster'"
    assert "install Squadron" in findings[0].remedy


def test_a_taken_port_is_a_failure_before_serve_runs(cluster: Any) -> None:
    nodes = alive_nodes()[:1]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert f"port {port} of" in only(list(check_http(nodes, port, is_serving=False)), "failure").text
        only(list(check_http(nodes, port, is_serving=True)), "ok")
    only(list(check_http(nodes, port, is_serving=False)), "ok")
    only(list(check_http(nodes, port, is_serving=True)), "warning")


def test_what_cannot_be_reached_is_named(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "hear_all", lambda targets: ["timed out"] * len(targets))
    findings: list[Finding] = list(check_reach(alive_nodes()[:2]))
    assert [finding.state for finding in findings] == ["failure", "failure"]
    assert findings[0].text.endswith(": timed out") and "firewall" not in findings[0].text
    assert "let the cluster's own network" in findings[0].remedy


@pytest.mark.long
def test_a_node_has_two_processes_however_many_others_there_are(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, str]] = []

    def counted(node_id: str, function: Any) -> Any:
        started.append((node_id, function.__name__))
        return on_node(node_id, function)

    monkeypatch.setattr(ports, "on_node", counted)
    nodes = alive_nodes()
    assert only(list(check_reach(nodes)), "ok").text == "3 nodes reach each other, at ports of their choice"
    assert sorted(started) == sorted((node.node_id, name) for node in nodes for name in ("Listener", "hear_all"))


def test_an_answer_that_does_not_come(cluster: Any) -> None:
    (node, *_) = alive_nodes()
    call = on_node(node.node_id, _wait_for_ever).remote()
    assert list(results([call], 0.5)) == [(None, "no answer within 0.5 s")]
    ray.cancel(call, force=True)


def _wait_for_ever() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.accept()


@pytest.mark.long
def test_the_command_on_a_running_cluster(cluster: Any) -> None:
    file = "configs/serve/demo.yaml"
    command = [*SQUADRON, "doctor", "--ray-address", cluster.address, "--config", file]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("failure")]
    assert (done.returncode, failed) == (1, ["gpus"]), done.stdout + done.stderr
    assert "demo: 1 engine(s) of 4 rank(s); " in done.stdout
