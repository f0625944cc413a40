"""`squadron status`: what a server serves and how busy it is; of a Ray cluster, its nodes and what
Serve runs there.
"""

import argparse
import sys
from collections.abc import Iterator

from cluster.commands.command_line import add_server_options
from cluster.commands.operating.serve_application import of_serve
from cluster.commands.operating.server_status import Told, ask_server
from cluster.commands.server.server_options import add_server_options as add_serve_options
from cluster.launch.ray_cluster import ray_cluster
from cluster.launch.serve_calls import is_serve_up
from cluster.serve_replicas import serve_details
from cluster.workers.nodes import Node, alive_nodes


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.description = (
        "Print what the server at --base-url serves: models, whether it is ready, engines and their problems, and "
        "requests. With --ray-address, instead the cluster's nodes and what Serve runs there. Exit status 0 if all is "
        "well, 1 if something is not, such as an engine that cannot answer, 2 if nothing answers."
    )
    add_server_options(parser)
    add_serve_options(parser, ("ray_address",))


def run(options: argparse.Namespace) -> None:
    """Raises InvalidConfig; SystemExit with status 1 if something is not well."""
    address = getattr(options, "ray_address", None)
    if address is None:
        told = ask_server(options.base_url, options.api_key)
    else:
        with ray_cluster(address):
            told = _ask_cluster()
    print("\n".join(told.lines))
    if not told.is_well:
        sys.exit(1)


def _ask_cluster() -> Told:
    nodes = list(_of_nodes(alive_nodes()))
    if not is_serve_up():
        return Told([*nodes, "serve     is not running"], is_well=False)
    told = of_serve(serve_details())
    return Told(nodes + told.lines, told.is_well)


def _of_nodes(nodes: list[Node]) -> Iterator[str]:
    for node in nodes:
        sizes = ", ".join(f"{node.resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
        labels = ", ".join(
            f"{name}={value}" for name, value in node.labels.items() if not name.startswith("ray.io/node")
        )
        yield f"node      {node.address}: {sizes}{f'; {labels}' if labels else ''}"
