"""Asks every node of a Ray cluster what it is."""

from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.doctor.facts.node import NodeFacts, read_node
from cluster.doctor.finding import Finding, failure, ok
from cluster.workers.nodes import Node
from cluster.workers.ray_errors import reason_of

__all__ = ["Node", "ask_nodes", "on_node", "results"]

ANSWER_SECONDS = 60.0  # for a node to start a process that imports Ray, and answer


def ask_nodes(nodes: Sequence[Node]) -> tuple[list[NodeFacts], list[Finding]]:
    """What those nodes are that answered, in order, and a finding about the others, or all."""
    calls = [on_node(node.node_id, read_node).remote(node.node_id, node.address) for node in nodes]
    facts, findings = [], []
    for node, (answer, error) in zip(nodes, results(calls, ANSWER_SECONDS), strict=True):
        if answer is not None:
            facts.append(answer)
        else:
            findings.append(_silent(node, error))
    addresses = ", ".join(each.address for each in facts)
    return facts, findings or [ok("nodes", f"{len(nodes)} answered: {addresses}")]


def on_node(node_id: str, function: Any) -> Any:
    """The function or class as Ray's task or actor on that node, whatever else runs there."""
    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(function).options(num_cpus=0, scheduling_strategy=strategy)


def results(calls: Sequence[Any], seconds: float) -> Iterator[tuple[Any, str]]:
    """Each call's result, or None and why there is none; all within `seconds`, about."""
    ended, _ = ray.wait(list(calls), num_returns=len(calls), timeout=seconds) if calls else ([], [])
    for call in calls:
        try:
            yield ray.get(call, timeout=0 if call not in ended else None), ""
        except GetTimeoutError:
            yield None, f"no answer within {seconds:g} s"
        except RayError as error:
            yield None, reason_of(error)


def _silent(node: Node, error: str) -> Finding:
    if "ModuleNotFoundError" in error or "No module named" in error:
        return failure(
            "nodes",
            f"{node.address} cannot run Squadron: {error}",
            "install Squadron there, at the same path or by the same image",
        )
    return failure(
        "nodes",
        f"{node.address} did not say what it is: {error}",
        "see raylet.out and dashboard_agent.log in that node's /tmp/ray/session_latest/logs; restart Ray there",
    )
