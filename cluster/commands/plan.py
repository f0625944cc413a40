"""`squadron plan`: prints the resources that a configuration needs, or why it is impossible."""

import argparse

from cluster.commands.options import add_model
from cluster.commands.server.server_options import configure
from cluster.download.models import planned
from cluster.launch.machine import check_machine


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_run)
    add_model(parser)


def _run(options: argparse.Namespace) -> None:
    config, server = configure(options)
    config, plan = planned(config)
    print(plan, flush=True)
    need = check_machine(config, plan, server.num_engines) if server.ray_address is None else None
    if need is not None:
        print(need)
