"""Whether nodes reach each other at ports that our processes choose, and clients reach HTTP's."""

import contextlib
import math
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import ray

from cluster.doctor.facts.nodes import Node, on_node, results
from cluster.doctor.finding import Finding, failure, ok, warning
from cluster.launch.node.within import answers

ANSWER_SECONDS = 60.0
WORD = b"squadron doctor"
CONNECT_SECONDS = 5.0
MOST_AT_ONCE = 16  # connections that a node makes
MOST_TOLD = 3  # nodes that one cannot reach
BACKLOG = 1024  # connections that wait, of all other nodes at once
ADDRESS = "give `ray start` an address of this node: --node-ip-address"
OPEN = "let the cluster's own network pass all TCP ports between its nodes (SECURITY.md lists who listens)"

Target = tuple[str, int]  # an address and a port


class Listener:
    """An actor: says WORD to all that connect, at a free port of the node's address, as long as it
    lives.
    """

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=BACKLOG)
        threading.Thread(target=self._listen, daemon=True).start()

    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        with contextlib.suppress(OSError):  # nobody is connected to it
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.sendall(WORD)


def hear(target: Target) -> str:
    """Why WORD was not heard there; "" if it was."""
    try:
        with socket.create_connection(target, timeout=CONNECT_SECONDS) as connection:
            said = connection.recv(len(WORD), socket.MSG_WAITALL)
    except OSError as error:
        return str(error)
    return "" if said == WORD else f"something else listens there, which says {said!r}"


def hear_all(targets: Sequence[Target]) -> list[str]:
    """See `hear`, of each."""
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        return list(pool.map(hear, targets))


def check_reach(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Each node from each other one: a process on each listens, another one tries all others."""
    if len(nodes) < 2:
        return
    listeners = [on_node(node.node_id, Listener).remote(node.address) for node in nodes]
    ports = list(results([listener.port.remote() for listener in listeners], ANSWER_SECONDS))
    has_failed = False
    for node, (_, error) in zip(nodes, ports, strict=True):
        if error:
            has_failed = True
            yield failure("ports", f"{node.address} cannot listen on its own address: {error}", ADDRESS)
    listening = [(node, (node.address, port)) for node, (port, _) in zip(nodes, ports, strict=True) if port is not None]
    wanted = [[target for there, target in listening if there is not here] for here in nodes]
    calls = [on_node(here.node_id, hear_all).remote(targets) for here, targets in zip(nodes, wanted, strict=True)]
    seconds = ANSWER_SECONDS + CONNECT_SECONDS * math.ceil(len(nodes) / MOST_AT_ONCE)
    for here, targets, (heard, error) in zip(nodes, wanted, results(calls, seconds), strict=True):
        if error:
            has_failed = True
            yield failure("ports", f"{here.address} did not say which nodes it reaches: {error}", "ask again")
        elif unheard := [(target, why) for target, why in zip(targets, heard, strict=True) if why]:
            has_failed = True
            yield failure("ports", _unreached(here, unheard), OPEN)
    for listener in listeners:  # all have reported
        ray.kill(listener)
    if not has_failed:
        yield ok("ports", f"{len(nodes)} nodes reach each other, at ports of their choice")


def _unreached(here: Node, unheard: Sequence[tuple[Target, str]]) -> str:
    told = "; ".join(f"{address}:{port}: {why}" for (address, port), why in unheard[:MOST_TOLD])
    more = f"; and {len(unheard) - MOST_TOLD} more" if len(unheard) > MOST_TOLD else ""
    return f"{here.address} cannot reach {told}{more}"


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
