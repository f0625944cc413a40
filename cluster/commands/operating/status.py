"""`squadron status`: what a server serves and how busy it is; of a Ray cluster, its nodes and what
Serve runs there.
"""

import argparse
from collections.abc import Iterator
from typing import Any

from ray import serve

from cluster.commands.command_line import add_server_options
from cluster.commands.operating.server_status import lines_of
from cluster.commands.server.server_options import add_server_options as add_serve_options
from cluster.launch.ray_cluster import ray_cluster
from cluster.workers.nodes import Node, alive_nodes


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.description = (
        "Print what the server at --base-url serves: models, whether it is ready, engines and requests. With "
        "--ray-address, instead the cluster's nodes and what Serve runs there. Exit status 2 if nothing answers."
    )
    add_server_options(parser)
    add_serve_options(parser, ("ray_address",))


def run(options: argparse.Namespace) -> None:
    """Raises InvalidConfig."""
    address = getattr(options, "ray_address", None)
    if address is None:
        for line in lines_of(options.base_url, options.api_key):
            print(line)
        return
    with ray_cluster(address):
        for line in [*_of_nodes(alive_nodes()), *_of_serve()]:
            print(line)


def _of_nodes(nodes: list[Node]) -> Iterator[str]:
    for node in nodes:
        sizes = ", ".join(f"{node.resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
        labels = ", ".join(
            f"{name}={value}" for name, value in node.labels.items() if not name.startswith("ray.io/node")
        )
        yield f"node      {node.address}: {sizes}{f'; {labels}' if labels else ''}"


def _of_serve() -> Iterator[str]:
    status: Any = serve.status()
    if not status.applications:
        yield "serve     no application"
    for node, proxy in status.proxies.items():
        yield f"proxy     {proxy.value} on node {node[:8]}"
    for name, application in status.applications.items():
        message = f": {application.message.strip().splitlines()[-1]}" if application.message.strip() else ""
        yield f"app       {name}: {application.status.value}{message}"
        for each, deployment in application.deployments.items():
            states = ", ".join(f"{count} {state}" for state, count in deployment.replica_states.items()) or "no replica"
            yield f"  {each}: {deployment.status.value}, {states}"
