"""`squadron plan`: prints the resources that a configuration needs, or why it is impossible."""

import argparse

from cluster.commands.options import add_model
from cluster.commands.server.configure import configure
from cluster.download.models import planned
from cluster.launch.machine import check_machine


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_run)
    add_model(parser)


def _run(options: argparse.Namespace) -> None:
    models, server = configure(options)
    taken = 0
    for model in models:
        if len(models) > 1:
            print(f"\n{model.config.model_name}" if taken else model.config.model_name)
        config, plan = planned(model.config)
        print(plan, flush=True)
        is_here = server.ray_address is None
        need = check_machine(config, plan, model.own.most_engines, taken=taken) if is_here else None
        if need is not None:
            print(need)
            taken += need.needed
