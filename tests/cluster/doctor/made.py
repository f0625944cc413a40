"""Nodes as they might be."""

from dataclasses import replace
from typing import Any

from cluster.doctor.facts.gpus import Gpu
from cluster.doctor.facts.interfaces import Interface
from cluster.doctor.facts.node import NodeFacts
from cluster.doctor.finding import Finding
from cluster.doctor.need import Need, need_of
from cluster.launch.config.model_config import ModelConfig
from cluster.launch.packages import ROOT
from cluster.workers.nodes import Node
from engine.config import EngineConfig

GIB = 1 << 30
GOOD = NodeFacts(
    node_id="a",
    address="10.0.0.1",
    host="one",
    system="Linux",
    cpu="a CPU",
    num_cpus=8,
    memory_total=64 * GIB,
    memory_available=48 * GIB,
    shm_total=32 * GIB,
    shm_free=32 * GIB,
    open_files=65536,
    niceness=0,
    versions={"python": "3.11.7", "squadron": "0.1.0", "ray": "2.60.0", "torch": "2.13.0"},
    others={},
    code="c0de",
    gpus=(),
    interfaces=(Interface("lo", ("127.0.0.1",), 65536), Interface("eth0", ("10.0.0.1",), 1500)),
    environment={},
)
H100 = Gpu("NVIDIA H100", 80 * GIB, 79 * GIB, "570.1")


def second(**changes: Any) -> NodeFacts:
    """Another node, which is as good but for the changes."""
    interfaces = (Interface("lo", ("127.0.0.1",), 65536), Interface("eth0", ("10.0.0.2",), 1500))
    return replace(GOOD, **({"node_id": "b", "address": "10.0.0.2", "interfaces": interfaces} | changes))


def nodes_with(resources: dict[str, dict[str, float]], **labels: dict[str, str]) -> list[Node]:
    """By their names; `labels` of those that have any."""
    return [Node(name, "", sizes, labels.get(name, {})) for name, sizes in resources.items()]


def need(num_engines: int = 1, own: ModelConfig | None = None, max_gpus: int | None = None, **changes: Any) -> Need:
    """Of the demo model; `own`: instead of `num_engines`."""
    given = {"model": str(ROOT / "configs" / "demo"), "kv_cache_memory_bytes": 8 << 20, "num_threads": 1} | changes
    own = own or ModelConfig(engine={}, num_engines=num_engines)
    return need_of(EngineConfig.create(**given), own, max_gpus)


def only(findings: list[Finding], state: str) -> Finding:
    """The only finding; it has a remedy unless all is well."""
    (finding,) = findings
    assert finding.state == state, finding
    assert bool(finding.remedy) is (state != "ok")
    return finding
