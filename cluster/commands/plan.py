"""`squadron plan`: prints the resources that a configuration needs, or why it is impossible."""

import argparse

from cluster.commands.options import add_model
from cluster.commands.server.configure import configure
from cluster.commands.server.models import check_names
from cluster.download.models import all_planned
from cluster.launch.machine import check_machine
from engine.errors import naming


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_run)
    add_model(parser)


def _run(options: argparse.Namespace) -> None:
    models, server = configure(options)
    plans = all_planned([model.config for model in models])
    check_names([model.with_config(config) for model, (config, _) in zip(models, plans, strict=True)], server.aliases)
    taken = 0
    for model, (config, plan) in zip(models, plans, strict=True):
        if len(models) > 1:
            print(f"\n{model.config.model_name}" if taken else model.config.model_name)
        print(plan, flush=True)
        is_here = server.ray_address is None
        with naming(f"model {model.config.model_name}", among=len(models)):
            need = check_machine(config, plan, model.own.most_engines, taken=taken) if is_here else None
        if need is not None:
            print(need)
            taken += need.needed
