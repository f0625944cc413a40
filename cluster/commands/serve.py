"""`squadron serve`, and the configuration that it starts with."""

import argparse
import contextlib
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from cluster.api.edge.hosts import default_hosts, is_loopback
from cluster.api.edge.keys import API_KEY_VARIABLE, read_api_keys
from cluster.checkpoint.plan import make_plan
from cluster.checkpoint.values import check_values
from cluster.commands.console import told_events
from cluster.commands.options import add_model, merged_options
from cluster.launch.app import APP_NAME, build_app
from cluster.launch.logs import KeptLogs
from cluster.launch.machine import check_machine
from cluster.launch.ray_cluster import ray_cluster
from cluster.launch.serving import check_port, serving
from cluster.sockets import LOOPBACK
from engine.config import EngineConfig, explain
from engine.errors import InvalidConfig


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _at_commas(value: object) -> object:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


class ServerOptions(BaseModel):
    """The options of `squadron serve` in addition to the engine's."""

    host: str = LOOPBACK
    port: int = Field(8000, ge=0, le=65535)
    api_key: Annotated[tuple[str, ...], BeforeValidator(_as_tuple)] = ()
    api_key_file: str | None = None
    allowed_hosts: Annotated[tuple[str, ...] | None, BeforeValidator(_at_commas)] = None
    num_engines: int = Field(1, ge=1)
    num_gateways: int = Field(1, ge=1)
    max_attempts: int = Field(3, ge=1)
    patience: float = Field(300, gt=0)
    stream_resume: bool = False
    strict_fields: bool = False
    ray_address: str | None = None
    log_dir: Path | None = None


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_run)
    group = parser.add_argument_group("server")
    suppress: Any = argparse.SUPPRESS
    group.add_argument("--host", default=suppress, help=f"the address to listen on (default: {LOOPBACK})")
    group.add_argument("--port", type=int, default=suppress, metavar="N", help="the port to listen on (default: 8000)")
    group.add_argument(
        "--api-key",
        action="append",
        default=suppress,
        metavar="KEY",
        help="key that clients must send; may be given several times. Other users of the machine can see it: prefer "
        f"the file or the environment variable {API_KEY_VARIABLE} (default: no key is needed)",
    )
    group.add_argument(
        "--api-key-file",
        default=suppress,
        metavar="FILE",
        help="file of API keys, one per line; # begins a comment",
    )
    group.add_argument(
        "--allowed-hosts",
        default=suppress,
        metavar="HOST,...",
        help="host names that the server answers to, without ports; *.NAME: its subdomains, *: any (default: "
        "loopback's names if --host is loopback, else any)",
    )
    group.add_argument("--num-engines", type=int, default=suppress, metavar="N", help="engine replicas (default: 1)")
    group.add_argument("--num-gateways", type=int, default=suppress, metavar="N", help="gateway replicas (default: 1)")
    group.add_argument(
        "--max-attempts",
        type=int,
        default=suppress,
        metavar="N",
        help="consecutive losses of engine replicas before a request fails (default: 3)",
    )
    group.add_argument(
        "--patience",
        type=float,
        default=suppress,
        metavar="S",
        help="seconds that a request waits for an engine replica that can continue it, then 503 (default: 300)",
    )
    group.add_argument(
        "--stream-resume",
        action="store_true",
        default=suppress,
        help="give events ids, with which a client can resume a broken stream, from any gateway",
    )
    group.add_argument(
        "--strict-fields",
        action="store_true",
        default=suppress,
        help="reject requests with unknown fields; default: ignore the fields, and say so in the answer",
    )
    group.add_argument(
        "--ray-address",
        default=suppress,
        metavar="ADDRESS",
        help="address of a running Ray cluster; default: start one on this machine",
    )
    group.add_argument(
        "--log-dir",
        type=Path,
        default=suppress,
        metavar="DIR",
        help="folder to keep the logs of the started cluster in; default: a new folder of /tmp, after a failure only",
    )
    add_model(parser)


def _run(options: argparse.Namespace) -> None:
    config, server = configure(options)
    plan = make_plan(config)
    is_lasting = server.ray_address is not None
    if not is_lasting:
        check_machine(config, plan, server.num_engines)
    api_keys = read_api_keys(server.api_key, server.api_key_file)
    os.environ.pop(API_KEY_VARIABLE, None)  # Ray's processes must not inherit it
    check_port(server.host, server.port)
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
        stack.enter_context(serving(build_app(app), host=server.host, port=server.port, ends_serve=is_lasting))
        if not api_keys and not is_loopback(server.host):
            print(f"No API key: anyone who can reach port {server.port} can send requests", flush=True)
        print(f"Ready: http://{server.host}:{server.port}/v1 (Ray cluster {ray.address}); Ctrl-C ends it", flush=True)
        if ray.environment:
            print(
                "Other Ray jobs connect with",
                *(f"{name}={value}" for name, value in ray.environment.items()),
                flush=True,
            )
        stack.enter_context(told_events(APP_NAME))
        stack.callback(print, "Stopping; running requests are finished first", flush=True)
        ray.wait()


def application(config: EngineConfig, server: ServerOptions, api_keys: tuple[str, ...]) -> dict[str, Any]:
    """The `args` of `build_app`."""
    return {
        "engine": config.model_dump(),
        "num_engines": server.num_engines,
        "num_gateways": server.num_gateways,
        "max_attempts": server.max_attempts,
        "patience": server.patience,
        "stream_resume": server.stream_resume,
        "strict_fields": server.strict_fields,
        "api_keys": api_keys,
        "allowed_hosts": default_hosts(server.host) if server.allowed_hosts is None else server.allowed_hosts,
    }


def configure(options: argparse.Namespace) -> tuple[EngineConfig, ServerOptions]:
    """The configuration of engine and server; raises InvalidConfig."""
    values = merged_options(options, ServerOptions.model_fields)
    given = {name: values.pop(name) for name in ServerOptions.model_fields if name in values}
    config = EngineConfig.create(ServerOptions.model_fields, **values)
    try:
        return config, ServerOptions(**given)
    except ValidationError as error:
        raise InvalidConfig(explain(error, [])) from None
