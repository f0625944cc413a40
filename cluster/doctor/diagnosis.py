"""All checks of a cluster, in order: first what each node is, last what needs all of them."""

from collections.abc import Iterator, Sequence

from cluster.doctor.checks import limits, room, same
from cluster.doctor.checks.collective import check_collective
from cluster.doctor.checks.plan import check_plan
from cluster.doctor.checks.planned_ports import check_planned_ports
from cluster.doctor.checks.ports import check_http, check_reach
from cluster.doctor.facts.nodes import ask_nodes
from cluster.doctor.finding import Finding
from cluster.doctor.need import Need
from cluster.launch.serve_calls import is_serve_up
from cluster.workers.nodes import alive_nodes

OF_NODES = (
    *(same.check_versions, same.check_code, same.check_gpu_kinds, same.check_networks),
    *(limits.check_shm, limits.check_memory, limits.check_processes, limits.check_interfaces),
)


def diagnose(needs: Sequence[Need], port: int) -> Iterator[Finding]:
    """Of the cluster that this process is connected to; `port`: where HTTP is, or will be. Raises
    InvalidConfig.
    """
    needs = [need.settled() for need in needs]
    nodes = alive_nodes()
    facts, findings = ask_nodes(nodes)
    yield from findings
    if not facts:
        return
    for check in OF_NODES:
        yield from check(facts)
    is_serving = is_serve_up()
    yield from room.check_gpus_seen(facts, {node.node_id: node.resources for node in nodes})
    answering = [node for node in nodes if node.node_id in {each.node_id for each in facts}]
    if needs:
        yield from check_plan(needs, facts, nodes, is_serving=is_serving)
    yield from check_reach(answering)
    yield from check_http(answering, port, is_serving=is_serving)
    if not is_serving:
        yield from check_planned_ports(needs, facts, answering)
    for need in needs:
        yield from check_collective(need.config, answering)
    if not needs:
        yield from check_collective(None, answering)
