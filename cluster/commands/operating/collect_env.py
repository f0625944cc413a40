"""`squadron collect-env`: what a report of a problem should say of this machine, or of every node
of a Ray cluster.
"""

import argparse
from collections.abc import Iterator

from cluster.commands.server.server_options import add_server_options
from cluster.doctor.facts.node import NodeFacts, read_node
from cluster.doctor.facts.nodes import ask_nodes
from cluster.launch.ray_cluster import ray_cluster
from cluster.memory import human
from cluster.workers.nodes import alive_nodes


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.description = (
        "Print versions, processors, GPUs, memory, limits, networks and the variables that matter, for a report. "
        "Values of variables named like secrets are not printed; look it through all the same before you send it."
    )
    add_server_options(parser, ("ray_address",))


def run(options: argparse.Namespace) -> None:
    """Raises InvalidConfig."""
    address = getattr(options, "ray_address", None)
    if address is None:
        print("\n".join(lines_of(read_node("", "this machine"))))
        return
    with ray_cluster(address):
        facts, findings = ask_nodes(alive_nodes())
        for each in facts:
            print("\n".join(lines_of(each)), end="\n\n")
        for finding in findings:
            if finding.state != "ok":
                print(finding)


def lines_of(node: NodeFacts) -> Iterator[str]:
    yield from (f"node         {node.address} ({node.host})", f"system       {node.system}")
    yield f"cpu          {node.cpu}, {node.num_cpus} usable"
    yield f"memory       {human(node.memory_available)} available of {human(node.memory_total)}"
    yield f"/dev/shm     {human(node.shm_free)} free of {human(node.shm_total)}"
    yield f"limits       {node.open_files} open files, nice {node.niceness}"
    yield from (f"gpu          {gpu}" for gpu in node.gpus or ("none",))
    yield from (f"network      {interface}" for interface in node.interfaces)
    yield f"code         {node.code}"
    yield from (f"{name:<12} {version}" for name, version in (node.versions | node.others).items())
    yield from (f"{name}={value}" for name, value in node.environment.items())
