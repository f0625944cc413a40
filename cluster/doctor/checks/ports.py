"""Whether nodes reach each other at ports that our processes choose, and clients reach HTTP's."""

import contextlib
import socket
from collections.abc import Iterator, Sequence
from itertools import permutations

import ray

from cluster.doctor.facts.nodes import Node, on_node, results
from cluster.doctor.finding import Finding, failure, ok, warning
from cluster.launch.node.within import answers

ANSWER_SECONDS = 60.0
WORD = b"squadron doctor"
LISTEN_SECONDS = 30.0
CONNECT_SECONDS = 5.0
ADDRESS = "give `ray start` an address of this node: --node-ip-address"
OPEN = "let the cluster's own network pass all TCP ports between its nodes (SECURITY.md lists who listens)"


class Listener:
    """An actor: says WORD to all that connect, at a free port of the node's address."""

    def __init__(self, host: str) -> None:
        self._socket = socket.create_server((host, 0), backlog=128)

    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def listen(self, count: int) -> int:
        """To so many connections; how many came within LISTEN_SECONDS."""
        self._socket.settimeout(LISTEN_SECONDS)
        for number in range(count):
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                return number
            with connection, contextlib.suppress(OSError):
                connection.sendall(WORD)
        return count


def hear(host: str, port: int) -> str:
    """Why WORD was not heard there; "" if it was."""
    try:
        with socket.create_connection((host, port), timeout=CONNECT_SECONDS) as connection:
            said = connection.recv(len(WORD), socket.MSG_WAITALL)
    except OSError as error:
        return str(error)
    return "" if said == WORD else f"something else listens there, which says {said!r}"


def check_reach(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Each node from each other one."""
    if len(nodes) < 2:
        return
    listeners = [on_node(node.node_id, Listener).remote(node.address) for node in nodes]
    ports = list(results([listener.port.remote() for listener in listeners], ANSWER_SECONDS))
    listening = {node.node_id: port for node, (port, _) in zip(nodes, ports, strict=True) if port is not None}
    has_failed = False
    for node, (_, error) in zip(nodes, ports, strict=True):
        if error:
            has_failed = True
            yield failure("ports", f"{node.address} cannot listen on its own address: {error}", ADDRESS)
    served = [listener.listen.remote(len(nodes) - 1) for listener in listeners]
    pairs = [(here, there) for here, there in permutations(nodes, 2) if there.node_id in listening]
    calls = [on_node(here.node_id, hear).remote(there.address, listening[there.node_id]) for here, there in pairs]
    for (here, there), (why_not, error) in zip(pairs, results(calls, ANSWER_SECONDS), strict=True):
        if why_not or error:
            has_failed = True
            port = listening[there.node_id]
            yield failure("ports", f"{here.address} cannot reach {there.address}:{port}: {why_not or error}", OPEN)
    for listener, _ in zip(listeners, served, strict=True):
        ray.kill(listener)
    if not has_failed:
        yield ok("ports", f"{len(nodes)} nodes reach each other, at ports of their choice")


def check_http(nodes: Sequence[Node], port: int, *, is_serving: bool) -> Iterator[Finding]:
    """Whether the port is free where Serve will listen; once it serves, whether it answers."""
    calls = [on_node(node.node_id, is_taken).remote(node.address, port) for node in nodes]
    taken = []
    for node, (answer, error) in zip(nodes, results(calls, ANSWER_SECONDS), strict=True):
        if error:
            yield warning("http", f"{node.address} did not say whether port {port} is free: {error}", "ask again")
        elif answer:
            taken.append(node.address)
    if is_serving:
        if taken:
            yield ok("http", f"port {port} answers on {', '.join(taken)}")
        else:
            yield warning(
                "http", f"Serve runs, and port {port} answers on no node", "see `squadron status --ray-address`"
            )
        return
    for address in taken:
        yield failure("http", f"port {port} of {address} is taken by another program", "end it, or choose another port")
    if not taken:
        yield ok("http", f"port {port} is free")


def is_taken(address: str, port: int) -> bool:
    """Whether anything listens there, on this node's address or on loopback."""
    return answers(f"{address}:{port}") or answers(f"127.0.0.1:{port}")
