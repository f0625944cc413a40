"""`squadron serve`, and the configuration that it starts with."""

import argparse
import contextlib
import os
from typing import Any

from cluster.api.edge.hosts import check_open, default_hosts
from cluster.api.keys.key_ring import API_KEY_VARIABLE, KeyRing, given_keys
from cluster.certificate import given_files
from cluster.checkpoint.plan import make_plan
from cluster.checkpoint.size import Plan
from cluster.checkpoint.values import check_values
from cluster.commands.console import told_events
from cluster.commands.options import add_model
from cluster.commands.server_options import ServerOptions, add_server_options, configure
from cluster.launch.app import APP_NAME, build_app
from cluster.launch.machine import check_machine, check_port
from cluster.launch.node.logs import KeptLogs
from cluster.launch.ray_cluster import RayCluster, ray_cluster
from cluster.launch.room import divide
from cluster.launch.serving import serving
from engine.config import EngineConfig


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_run)
    add_server_options(parser)
    add_model(parser)


def _run(options: argparse.Namespace) -> None:
    config, server = configure(options)
    plan = make_plan(config)
    api_keys = given_keys(server.api_key, server.api_key_file)
    has_keys = bool(KeyRing(api_keys, server.api_key_file))
    check_open(server.host, has_keys=has_keys, insecure_no_key=server.insecure_no_key)
    certificate = given_files(server.ssl_certfile, server.ssl_keyfile)
    if certificate is not None:
        certificate.read()
    is_lasting = server.ray_address is not None
    computes_on_cpu = not is_lasting and check_machine(config, plan, server.num_engines) is not None
    os.environ.pop(API_KEY_VARIABLE, None)  # Ray's processes must not inherit it
    check_port(server.host, server.port)
    if computes_on_cpu:
        config = _leave_room(config, plan, server)
    app = application(config, server, api_keys)
    print(f"Starting {config.model_name} on {config.world_size} rank(s)", flush=True)
    if not check_values(config):
        print("The workers will verify the weights, which are too large to read twice", flush=True)
    kept = KeptLogs(server.log_dir)
    with contextlib.ExitStack() as stack:
        ray = stack.enter_context(
            ray_cluster(server.ray_address, num_workers=server.num_engines * config.world_size, kept_logs=kept)
        )
        print(f"Logs: {ray.logs}{' on each node' if is_lasting else ''}", flush=True)
        running = stack.enter_context(
            serving(
                build_app(app),
                host=server.host,
                port=server.port,
                ends_serve=is_lasting,
                ingress=server.ingress,
                certificate=certificate,
                log_format=server.log_format,
            )
        )
        print(running.ingress.report, flush=True)
        _say_ready(server, ray, "http" if certificate is None else "https")
        stack.enter_context(told_events(APP_NAME))
        stack.callback(print, "Stopping; running requests are finished first", flush=True)
        ray.wait()


def _say_ready(server: ServerOptions, ray: RayCluster, scheme: str) -> None:
    if server.insecure_no_key:
        print(f"No API key: anyone who can reach port {server.port} can send requests", flush=True)
    url = f"{scheme}://{server.host}:{server.port}/v1"
    print(f"Ready: {url} (Ray cluster {ray.address}); Ctrl-C ends it", flush=True)
    if ray.environment:
        variables = [f"{name}={value}" for name, value in ray.environment.items()]
        print("Other Ray jobs connect with", *variables, flush=True)


def _leave_room(config: EngineConfig, plan: Plan, server: ServerOptions) -> EngineConfig:
    """The configuration with as many threads as leave room for HTTP, and a line about it."""
    weight_bytes = config.world_size * plan.weight_bytes
    room = divide(config, weight_bytes, num_engines=server.num_engines, num_gateways=server.num_gateways)
    print(room, flush=True)
    return config.model_copy(update={"num_threads": room.num_threads})


def application(config: EngineConfig, server: ServerOptions, api_keys: tuple[str, ...]) -> dict[str, Any]:
    """The `args` of `build_app`."""
    return {
        "engine": config.model_dump(),
        "num_engines": server.num_engines,
        "num_gateways": server.num_gateways,
        "max_attempts": server.max_attempts,
        "patience": server.patience,
        "max_queue_seconds": server.max_queue_seconds,
        "stream_resume": server.stream_resume,
        "strict_fields": server.strict_fields,
        "otlp_traces_endpoint": server.otlp_traces_endpoint,
        "collect_detailed_traces": server.collect_detailed_traces,
        "log_format": server.log_format,
        "enable_log_requests": server.enable_log_requests,
        "open_metrics": server.open_metrics,
        "insecure_no_key": server.insecure_no_key,
        "api_keys": api_keys,
        "api_key_file": server.api_key_file,
        "allowed_hosts": default_hosts(server.host) if server.allowed_hosts is None else server.allowed_hosts,
        "allowed_origins": server.allowed_origins,
    }
