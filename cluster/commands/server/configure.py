"""The configuration of `squadron serve`, from the command line and a configuration file."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cluster.commands.options import merged_options
from cluster.commands.server.models import ModelStart, only_model, several_models
from cluster.commands.server.server_options import ServerOptions
from cluster.launch.config.app_config import read_app_config
from engine.config import explain
from engine.errors import InvalidConfig


def configure(options: argparse.Namespace) -> tuple[tuple[ModelStart, ...], ServerOptions]:
    """The models, one at least, and the server's configuration; raises InvalidConfig."""
    values = merged_options(options, ServerOptions.model_fields)
    given = {name: values.pop(name) for name in ServerOptions.model_fields if name in values}
    try:
        server = ServerOptions(**given)
    except ValidationError as error:
        raise InvalidConfig(explain(error, [])) from None
    server.check()
    if "engine" in values:
        raise InvalidConfig(
            "engine is a key of each of models, and of args in a file for serve run; options of the only model stand "
            "beside the others"
        )
    of_the_only = {
        "num_engines": server.num_engines,
        "num_prefill_engines": server.num_prefill_engines,
        "prefill_min_tokens": server.prefill_min_tokens,
        "prefill_memory": server.prefill_memory,
        "prefill_transport": server.prefill_transport,
        "drain_memory": server.drain_memory,
        "lora_modules": tuple(map(_absolute_module, server.lora_modules)),
        "lora_roots": tuple(str(Path(root).absolute()) for root in server.lora_roots),
    }
    if not server.models:
        return (only_model(values, ServerOptions.model_fields, **of_the_only),), server
    if wrong := of_the_only.keys() & given.keys():
        raise InvalidConfig(f"{min(wrong)} is of the only model; with models it is a key of each of them")
    return several_models(server.models, values, ServerOptions.model_fields), server


def application(server: ServerOptions, models: Sequence[ModelStart], api_keys: tuple[str, ...]) -> dict[str, Any]:
    """The `args` of `build_app`."""
    of_models = {"models": [model.args() for model in models]} if server.models else models[0].args()
    return of_models | {
        "aliases": server.aliases,
        "num_gateways": server.num_gateways,
        "max_gpus": server.max_gpus,
        "max_attempts": server.max_attempts,
        "patience": server.patience,
        "max_queue_seconds": server.max_queue_seconds,
        "stream_resume": server.stream_resume,
        "stored_response_seconds": server.stored_response_seconds,
        "num_store_shards": server.num_store_shards,
        "strict_fields": server.strict_fields,
        "enable_sleep_mode": server.enable_sleep_mode,
        "files_path": _absolute(server.files_path),
        "otlp_traces_endpoint": server.otlp_traces_endpoint,
        "collect_detailed_traces": server.collect_detailed_traces,
        "log_format": server.log_format,
        "enable_log_requests": server.enable_log_requests,
        "open_metrics": server.open_metrics,
        "insecure_no_key": server.insecure_no_key,
        "api_keys": api_keys,
        "api_key_file": server.api_key_file,
        "allowed_hosts": server.allowed_hosts,
        "allowed_origins": server.allowed_origins,
    }


def check_application(server: ServerOptions, models: Sequence[ModelStart], api_keys: tuple[str, ...]) -> None:
    """Raises InvalidConfig for what the application would refuse once Ray has started."""
    config = read_app_config(application(server, models, api_keys))
    config.check()
    config.deployment_names("", [model.config for model in models])


def _absolute(place: str | None) -> str | None:
    """Gateways have working folders of their own."""
    return place if place is None or "://" in place else str(Path(place).absolute())


def _absolute_module(module: str) -> str:
    name, equals, folder = module.partition("=")
    return f"{name}={Path(folder).absolute()}" if equals and folder else module
