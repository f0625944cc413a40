"""Whether those ports are free, beside HTTP's, that engines and gateways of a plan listen on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ray.serve._private.constants import RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT, RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT

from cluster.doctor.facts.node import NodeFacts
from cluster.doctor.facts.nodes import Node, on_node, results
from cluster.doctor.finding import Finding, failure, ok, warning
from cluster.doctor.need import Need, may_be_on
from cluster.ingress.environment import ENABLE, FALLBACK_PORT, FALLBACK_PORTS
from cluster.launch.machine import free_port
from cluster.sockets import LOOPBACK
from engine.config import EngineConfig
from engine.errors import InvalidConfig

ANSWER_SECONDS = 60.0
HEAD = "node:__internal_head__"  # a resource of Ray's


@dataclass(frozen=True, slots=True)
class Wanted:
    """One of these ports."""

    what: str  # that listens there
    ports: range
    goes_on: bool = False  # to higher ones, if these are taken


def check_planned_ports(needs: Sequence[Need], facts: Sequence[NodeFacts], nodes: Sequence[Node]) -> Iterator[Finding]:
    """Before Serve runs: of KV events, and behind HAProxy of gateways and Serve's own proxy."""
    environments = {each.node_id: each.environment for each in facts}
    wanted = {
        node.node_id: [*_of_events(needs, node), *_of_haproxy(node, environments[node.node_id])] for node in nodes
    }
    asked = [node for node in nodes if wanted[node.node_id]]
    calls = [
        on_node(node.node_id, all_taken).remote(node.address, [each.ports for each in wanted[node.node_id]])
        for node in asked
    ]
    has_failed = False
    for node, (taken, error) in zip(asked, results(calls, ANSWER_SECONDS), strict=True):
        if error:
            has_failed = True
            yield warning("ports", f"{node.address} did not say which ports are free: {error}", "ask again")
            continue
        for each in (each for each, is_taken in zip(wanted[node.node_id], taken, strict=True) if is_taken):
            has_failed = True
            yield _taken(each, node)
    if asked and not has_failed:
        names = sorted({each.what for node in asked for each in wanted[node.node_id]})
        yield ok("ports", f"there are free ones for {', '.join(names)}")


def all_taken(address: str, ranges: Sequence[range]) -> list[bool]:
    """On this node: whether none of each range can be listened on, at its address and loopback."""
    return [not all(_has_free(host, ports) for host in (address, LOOPBACK)) for ports in ranges]


def _has_free(host: str, ports: range) -> bool:
    try:
        free_port(host, ports[0], ports[-1])
    except InvalidConfig:
        return False
    return True


def _of_events(needs: Sequence[Need], node: Node) -> Iterator[Wanted]:
    for need in needs:
        if may_be_on(node, need.config):
            yield from (
                Wanted(f"KV events of {need.config.model_name}", range(port, port + 1), goes_on=True)
                for port in _ports(need.config)
            )


def _ports(config: EngineConfig) -> list[int]:
    """Of a node's first engine: the next ones take the next ports."""
    events = config.kv_events_config
    if events is None or not events.enable_kv_cache_events or events.publisher != "zmq":
        return []
    given = [
        endpoint.rpartition(":")[2]
        for endpoint in (events.endpoint, events.replay_endpoint or "")
        if endpoint.startswith("tcp://")
    ]
    return [int(port) for port in given if port not in ("*", "0")]


def _of_haproxy(node: Node, environment: dict[str, str]) -> Iterator[Wanted]:
    """If Ray was started there with what `cluster.ingress.node` prints."""
    if environment.get(ENABLE) != "1":
        return
    gateways = range(RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT, RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT)
    yield Wanted("gateways", gateways)
    if HEAD in node.resources:
        chosen = environment.get(FALLBACK_PORT, "")
        ports = range(int(chosen), int(chosen) + 1) if chosen.isdecimal() else FALLBACK_PORTS
        yield Wanted("Serve's own proxy", ports)


def _taken(wanted: Wanted, node: Node) -> Finding:
    first, last = wanted.ports[0], wanted.ports[-1]
    if wanted.goes_on:
        text = f"port {first} of {node.address} is taken by another program, and {wanted.what} will be at a higher one"
        return warning("ports", text, "end that program, or name another endpoint in kv_events_config")
    which = f"every port from {first} to {last}" if first < last else f"port {first}"
    text = f"{which} of {node.address} is taken, and wanted for {wanted.what}"
    return failure("ports", text, "end what listens there, or start Ray anew with what cluster.ingress.node prints")
