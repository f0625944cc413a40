"""`squadron doctor`: checks this machine, or a Ray cluster, and what is to run on it."""

import argparse
import sys
from collections import Counter

from cluster.commands.options import add_model, engine_arguments, read_config_file
from cluster.commands.server.configure import configure
from cluster.commands.server.models import check_names
from cluster.commands.server.server_options import add_server_options
from cluster.doctor.diagnosis import diagnose
from cluster.doctor.need import Need, http_port, need_of, needs_of_serve_file
from cluster.launch.machine import checked_port
from cluster.launch.ray_cluster import ray_cluster
from engine.errors import InvalidConfig

OPTIONS = ("port", "num_engines", "ray_address")
SEVERITY = ("failure", "warning")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.description = (
        "Check this machine, on a Ray cluster that is started for it, or the cluster at --ray-address: versions, "
        "memory, shared memory, limits, networks, ports, GPUs, and two seconds of collectives between the processes "
        "that ranks would be. With MODEL or --config (a file of configs/engine or configs/serve), also whether that "
        "fits. Exit status 1 if a check failed."
    )
    add_server_options(parser, OPTIONS)
    add_model(parser)


def run(options: argparse.Namespace) -> None:
    """Raises InvalidConfig; SystemExit with status 1 if a check failed."""
    needs, port, address = _wanted(options)
    counts: Counter[str] = Counter()
    with ray_cluster(address, num_workers=max([need.num_ranks for need in needs], default=1)):
        for finding in diagnose(needs, port):
            counts[finding.state] += 1
            print(finding, flush=True)
    print(", ".join(f"{counts[state]} {state}(s)" for state in SEVERITY))
    if counts["failure"]:
        sys.exit(1)


def _wanted(options: argparse.Namespace) -> tuple[list[Need], int, str | None]:
    """What is to run, the port of HTTP, and the cluster's address. Raises InvalidConfig."""
    address = getattr(options, "ray_address", None)
    values = read_config_file(options.config) if options.config else {}
    if "applications" in values:
        _refuse(options, f"with {options.config}, whose applications have their own")
        port = checked_port(getattr(options, "port", http_port(values)))
        return needs_of_serve_file(values, options.config), port, address
    if options.model is None and not values.keys() & {"model", "models"}:
        _refuse(options, "without MODEL: no check would look at it")
        port = checked_port(getattr(options, "port", values.get("port", 8000)))
        return [], port, values.get("ray_address") if address is None else address
    models, server = configure(options)
    check_names(models, server.aliases)
    return [need_of(model.config, model.own, server.max_gpus) for model in models], server.port, server.ray_address


def _refuse(options: argparse.Namespace, why: str) -> None:
    """Raises InvalidConfig for a model, or an option of one, that no check would look at."""
    given = engine_arguments(options)
    given |= {name: value for name in ("model", "num_engines") if (value := getattr(options, name, None)) is not None}
    for name, value in given.items():
        raise InvalidConfig(f"{name}={value} is of no use {why}")
