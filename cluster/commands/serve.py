"""`squadron serve`, and the configuration that it starts with."""

import argparse
import contextlib

from cluster.checkpoint.values import check_values
from cluster.commands.options import add_model
from cluster.commands.server.configure import application, configure
from cluster.commands.server.console import told_events, told_waits
from cluster.commands.server.preflight import Start, prepare
from cluster.commands.server.server_options import ServerOptions, add_server_options
from cluster.launch.app import APP_NAME, build_app
from cluster.launch.node.logs import KeptLogs
from cluster.launch.ray_cluster import RayCluster, ray_cluster
from cluster.launch.serving import serving


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_run)
    add_server_options(parser)
    add_model(parser)


def _run(options: argparse.Namespace) -> None:
    models, server = configure(options)
    start = prepare(models, server)
    _say_starting(start, server)
    is_lasting = server.ray_address is not None
    kept = KeptLogs(server.log_dir)
    with contextlib.ExitStack() as stack:
        ray = stack.enter_context(
            ray_cluster(
                server.ray_address,
                num_workers=sum(model.num_ranks for model in start.models),
                num_gateways=server.num_gateways,
                kept_logs=kept,
            )
        )
        print(f"Logs: {ray.logs}{' on each node' if is_lasting else ''}", flush=True)
        with told_waits(APP_NAME):
            running = stack.enter_context(
                serving(
                    build_app(application(server, start.models, start.api_keys)),
                    host=server.host,
                    port=server.port,
                    ends_serve=is_lasting,
                    ingress=server.ingress,
                    certificate=start.certificate,
                    log_format=server.log_format,
                )
            )
        print(running.ingress.report, flush=True)
        stack.enter_context(told_events(APP_NAME))
        stack.callback(print, "Stopping; running requests are finished first", flush=True)
        _say_ready(server, ray, "http" if start.certificate is None else "https")
        ray.wait()


def _say_starting(start: Start, server: ServerOptions) -> None:
    """Raises InvalidConfig for weights that are damaged."""
    for config in (model.config for model in start.models):
        print(f"Starting {config.model_name} on {config.world_size} rank(s)", flush=True)
        if (server.ray_address is not None and config.source is not None) or not check_values(config):
            print("The workers will verify the weights, which are too large to read twice", flush=True)


def _say_ready(server: ServerOptions, ray: RayCluster, scheme: str) -> None:
    if server.insecure_no_key:
        print(f"No API key: anyone who can reach port {server.port} can send requests", flush=True)
    host = f"[{server.host}]" if ":" in server.host else server.host
    print(f"Ready: {scheme}://{host}:{server.port}/v1 (Ray cluster {ray.address}); Ctrl-C ends it", flush=True)
    if ray.environment:
        variables = [f"{name}={value}" for name, value in ray.environment.items()]
        print("Other Ray jobs connect with", *variables, flush=True)
