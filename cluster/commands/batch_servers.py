"""Selects the server that answers a batch: a running one, or one started for this batch alone."""

import argparse
import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.commands.command_line import add_api_key, base_url
from cluster.commands.options import MODEL_HELP, engine_arguments, fetched_config, merged_options
from cluster.launch.app import APP_NAME, build_app
from cluster.launch.ray_cluster import ray_cluster
from cluster.launch.serving import serving_handles
from engine.errors import InvalidConfig

UNLIMITED = {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0}  # all wait for one client


def add_servers(parser: argparse.ArgumentParser) -> None:
    """Options that select the server, and the engine options of a server started for the batch."""
    group = parser.add_argument_group("server, one of")
    group.add_argument("--model", metavar="MODEL", help=f"{MODEL_HELP}; served for this batch only")
    group.add_argument(
        "--base-url",
        "--url",
        type=base_url,
        metavar="URL",
        help="send the requests over HTTP to the server at this URL",
    )
    group.add_argument(
        "--ray-address", metavar="ADDRESS", help="send the requests by handle to the server on this Ray cluster"
    )
    add_api_key(group)
    group.add_argument("--api-key-file", metavar="FILE", help="file that holds the API key")
    group.add_argument("--config", metavar="FILE", help="a YAML file of engine options")


def check_servers(options: argparse.Namespace) -> None:
    """Raises InvalidConfig unless one is given, and for options of an engine if it has its own."""
    given = [name for name in ("model", "base_url", "ray_address") if getattr(options, name) is not None]
    if len(given) != 1 and not (options.config and not given):
        raise InvalidConfig("give one of --model, --base-url and --ray-address")
    if given != ["base_url"] and options.api_key_file is not None:
        raise InvalidConfig(f"api_key_file={options.api_key_file} is of use with --base-url only")
    if given and given != ["model"]:
        server = f"--{given[0].replace('_', '-')}"
        if options.config:
            raise InvalidConfig(f"config={options.config} is of no use with {server}, whose engine has started")
        for name, value in engine_arguments(options).items():
            if name != "model":
                raise InvalidConfig(f"{name}={value} is of no use with {server}, whose engine has started")


@contextlib.contextmanager
def door_to(options: argparse.Namespace) -> Iterator[Any]:
    """The server that the requests go to, and a Ray cluster that sends them."""
    doors: Any = importlib.import_module("cluster.batch.doors")
    if options.base_url is not None:
        api_key = _api_key(options)
        with ray_cluster():
            yield doors.HttpDoor(options.base_url, api_key)
    elif options.ray_address is not None:
        with ray_cluster(options.ray_address):
            yield doors.HandleDoor(APP_NAME)
    else:
        config = fetched_config(**(UNLIMITED | merged_options(options)))
        application = build_app({"engine": config.model_dump(), "max_queue_seconds": 0})
        with ray_cluster(num_workers=config.world_size), serving_handles(application):
            yield doors.HandleDoor(APP_NAME)


def _api_key(options: argparse.Namespace) -> str | None:
    if options.api_key_file is None:
        given: str | None = options.api_key
        return given
    try:
        text = Path(options.api_key_file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidConfig(f"{options.api_key_file} is not text in UTF-8") from None
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if len(lines) != 1:
        raise InvalidConfig(f"{options.api_key_file} holds {len(lines)} lines; it must hold one API key")
    return lines[0]
