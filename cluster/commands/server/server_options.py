"""The options of `squadron serve` beside those of engines."""

import argparse
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, Field

from cluster.api.keys.key_ring import API_KEY_VARIABLE
from cluster.api.models.aliases import Target
from cluster.ingress.choice import DEFAULT_WISH, WISHES, Wish, check_haproxy
from cluster.ingress.environment import why_not_here
from cluster.logs import LogFormat
from cluster.sockets import LOOPBACK
from engine.config import LEAST_GIB, MOST_HOST_GIB, MOST_PROMPT, Transport
from engine.errors import InvalidConfig


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _at_commas(value: object) -> object:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


class ServerOptions(BaseModel):
    """The options of `squadron serve` in addition to the engine's."""

    host: str = Field(LOOPBACK, description=f"the address to listen on (default: {LOOPBACK})")
    port: int = Field(8000, ge=1, le=65535, description="the port to listen on (default: 8000)")
    api_key: Annotated[tuple[str, ...], BeforeValidator(_as_tuple)] = Field(
        (),
        description="key that clients must send; may be given several times. Other users of the machine can see it: "
        f"prefer the file or the environment variable {API_KEY_VARIABLE} (default: no key; on loopback only)",
    )
    api_key_file: str | None = Field(
        None,
        description="file of API keys, read again when it changes: one key per line, # begins a comment; or .yaml, "
        ".yml, .json with the limits of each key",
    )
    insecure_no_key: bool = Field(
        False, description="allow requests without a key on an address that other machines reach"
    )
    ssl_certfile: str | None = Field(
        None,
        description="PEM file of a certificate and its intermediate certificates: listen with TLS; read again when "
        "it changes",
    )
    ssl_keyfile: str | None = Field(None, description="PEM file of the certificate's key (default: the same file)")
    allowed_hosts: Annotated[tuple[str, ...] | None, BeforeValidator(_at_commas)] = Field(
        None,
        description="host names that the server answers to, without ports; *.NAME: all subdomains of NAME, *: any "
        "(default: loopback's names if --host is loopback, else any)",
    )
    allowed_origins: Annotated[tuple[str, ...], BeforeValidator(_at_commas)] = Field(
        (),
        description="origins of web pages that may send requests from a browser, such as https://chat.example.com; "
        "*: any (default: none)",
    )
    num_engines: int = Field(1, ge=1, description="number of engine replicas (default: 1)")
    num_prefill_engines: int = Field(
        0, ge=0, description="number of engines that compute long prompts for the others (default: 0)"
    )
    prefill_min_tokens: int = Field(
        512, ge=1, le=MOST_PROMPT, description="tokens, about, of a prompt's new part that these compute (default: 512)"
    )
    prefill_memory: float = Field(
        4.0,
        ge=LEAST_GIB,
        le=MOST_HOST_GIB,
        description="GiB of shared memory for what they hand over, half of it at most (default: 4)",
    )
    prefill_transport: Transport = Field(
        "tcp", description="what carries it to other nodes: tcp, or nixl where both have it (default: tcp)"
    )
    drain_memory: float = Field(
        4.0,
        ge=0,
        le=MOST_HOST_GIB,
        description="GiB of shared memory, half of it at most, for blocks of requests that an engine which ends hands "
        "over; 0: they are computed again (default: 4)",
    )
    num_gateways: int = Field(1, ge=1, description="number of gateway replicas (default: 1)")
    max_gpus: int | None = Field(
        None,
        ge=1,
        description="GPUs that the cluster at --ray-address will have once all its nodes are there; more engines are "
        "refused (default: those it has now)",
    )
    max_attempts: int = Field(
        3, ge=1, description="a request fails after this many consecutive losses of engine replicas (default: 3)"
    )
    patience: float = Field(
        300,
        gt=0,
        description="seconds that a request waits for an engine replica before it gets 503 (default: 300)",
    )
    max_queue_seconds: float = Field(
        10,
        ge=0,
        description="reject a request that would wait longer, as estimated from the rate at which requests end; "
        "0: no limit (default: 10)",
    )
    stream_resume: bool = Field(
        False, description="give events ids with which a client can resume a broken stream on any gateway"
    )
    stored_response_seconds: float = Field(
        3600,
        ge=0,
        le=30 * 86_400,
        description="seconds for which a response of /v1/responses is stored, so that others can continue it; "
        "0: not stored (default: 3600)",
    )
    num_store_shards: int | None = Field(
        None,
        ge=1,
        description="shards of the store of these responses and of streams for --stream-resume, two processes each "
        "(default: one for every 8 gateways)",
    )
    strict_fields: bool = Field(
        False, description="reject requests with unknown fields; default: ignore them, with a warning in the answer"
    )
    enable_sleep_mode: bool = Field(
        False, description="let /sleep, /wake_up, /pause and /resume exist (default: these routes do not exist)"
    )
    files_path: str | None = Field(
        None,
        description="folder for /v1/files and /v1/batches, the same on every node: a path or s3://bucket/folder "
        "(default: none, and these routes do not exist)",
    )
    lora_modules: Annotated[tuple[str, ...], BeforeValidator(_as_tuple)] = Field(
        (),
        description="adapters in PEFT's layout that requests may name as their model (needs --enable-lora): name and "
        "folder of each (default: none)",
    )
    lora_roots: Annotated[tuple[str, ...], BeforeValidator(_as_tuple)] = Field(
        (),
        description="folders below which /v1/load_lora_adapter may load adapters, the same on every node "
        "(default: none, and the route does not exist)",
    )
    otlp_traces_endpoint: str | None = Field(
        None,
        description="URL that OpenTelemetry spans of requests are sent to, by OTLP over HTTP, such as "
        "http://127.0.0.1:4318/v1/traces (default: no spans)",
    )
    collect_detailed_traces: Literal["all"] | None = Field(
        None, description="all: also a span for each of a request's last 64 steps (default: spans of its phases only)"
    )
    log_format: LogFormat = Field(
        "text",
        description="json: write each line of the gateways', engines' and Serve's logs as an object (default: text)",
    )
    enable_log_requests: bool = Field(
        False, description="log a line for each request that ends: status, tokens, times; never its text"
    )
    ingress: Wish = Field(
        DEFAULT_WISH,
        description="the program that listens: haproxy, Serve's own proxy (proxy; slower), or haproxy if available "
        f"(auto) (default: {DEFAULT_WISH})",
    )
    open_metrics: bool = Field(
        False,
        description="let everybody read /metrics; default: only with a key, or if there are none, from this machine",
    )
    ray_address: str | None = Field(
        None, description="address of a running Ray cluster; default: start one on this machine"
    )
    log_dir: Path | None = Field(
        None,
        description="folder to which the started cluster's logs are copied; default: a new folder of /tmp, after a "
        "failure only",
    )
    # In a file only:
    models: tuple[dict[str, Any], ...] = ()  # in place of MODEL; see `cluster.launch.config.model_config`
    aliases: dict[str, Target] = Field(default_factory=dict)  # other names of models

    def check(self) -> None:
        """Raises InvalidConfig for what `ray_address` excludes, and for a wish that this machine
        cannot meet.
        """
        if self.ray_address is None and self.ingress == "haproxy":
            check_haproxy(why_not_here())
        if self.ray_address is not None and self.log_dir is not None:
            raise InvalidConfig(f"log_dir={self.log_dir}: the logs of a cluster that ran before stay on its nodes")


# What argparse is told of each option beside its name and description.
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "host": {},
    "port": {"type": int, "metavar": "N"},
    "api_key": {"action": "append", "metavar": "KEY"},
    "api_key_file": {"metavar": "FILE"},
    "insecure_no_key": {"action": "store_true"},
    "ssl_certfile": {"metavar": "FILE"},
    "ssl_keyfile": {"metavar": "FILE"},
    "allowed_hosts": {"metavar": "HOST,..."},
    "allowed_origins": {"metavar": "ORIGIN,..."},
    "num_engines": {"type": int, "metavar": "N"},
    "num_prefill_engines": {"type": int, "metavar": "N"},
    "prefill_min_tokens": {"type": int, "metavar": "N"},
    "prefill_memory": {"type": float, "metavar": "GiB"},
    "prefill_transport": {"choices": get_args(Transport)},
    "drain_memory": {"type": float, "metavar": "GiB"},
    "num_gateways": {"type": int, "metavar": "N"},
    "max_gpus": {"type": int, "metavar": "N"},
    "max_attempts": {"type": int, "metavar": "N"},
    "patience": {"type": float, "metavar": "S"},
    "max_queue_seconds": {"type": float, "metavar": "S"},
    "stream_resume": {"action": "store_true"},
    "stored_response_seconds": {"type": float, "metavar": "S"},
    "num_store_shards": {"type": int, "metavar": "N"},
    "strict_fields": {"action": "store_true"},
    "enable_sleep_mode": {"action": "store_true"},
    "files_path": {"metavar": "DIR"},
    "lora_modules": {"nargs": "+", "metavar": "NAME=FOLDER"},
    "lora_roots": {"nargs": "+", "metavar": "FOLDER"},
    "otlp_traces_endpoint": {"metavar": "URL"},
    "collect_detailed_traces": {"choices": ("all",)},
    "log_format": {"choices": get_args(LogFormat)},
    "enable_log_requests": {"action": "store_true"},
    "ingress": {"choices": WISHES},
    "open_metrics": {"action": "store_true"},
    "ray_address": {"metavar": "ADDRESS"},
    "log_dir": {"type": Path, "metavar": "DIR"},
}


def add_server_options(parser: argparse.ArgumentParser, names: tuple[str, ...] = tuple(_ARGUMENTS)) -> None:
    """All of them, or those named. An option that is not given is absent from the namespace."""
    group = parser.add_argument_group("server")
    for name in names:
        flag, told = "--" + name.replace("_", "-"), ServerOptions.model_fields[name].description
        group.add_argument(flag, default=argparse.SUPPRESS, help=told, **_ARGUMENTS[name])
