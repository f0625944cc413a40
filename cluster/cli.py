"""The `squadron` command: arguments to a configuration to one call. Errors are one line and status 2; a lost cluster's is 1."""

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from cluster import bench, chaos, checkpoint_command, demo, trace
from cluster.api.hosts import default_hosts, is_loopback
from cluster.api_keys import API_KEY_VARIABLE, read_api_keys
from cluster.arguments import add_engine_options, engine_arguments, read_config_file
from cluster.channel import LOOPBACK
from cluster.checkpoints import make_checkpoint, make_folder, num_bytes
from cluster.command_line import CommandParser
from cluster.console import told_events
from cluster.launch import APP_NAME, build_app, check_port, ray_cluster, serving
from cluster.llm import LLM
from cluster.logs import KeptLogs
from cluster.machine import check_machine
from cluster.plan import make_plan
from cluster.progress import progress
from cluster.shapes import SHAPES
from cluster.version import VERSION
from cluster.weight_values import check_values
from engine.config import EngineConfig, explain
from engine.errors import ClusterLost, InvalidConfig, SquadronError, in_a_line
from engine.model_folder import resolve_model
from engine.sampling_params import SamplingParams


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _at_commas(value: object) -> object:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


class ServerOptions(BaseModel):
    """The options of `squadron serve` beside the engine's."""

    host: str = LOOPBACK
    port: int = Field(8000, ge=0, le=65535)
    api_key: Annotated[tuple[str, ...], BeforeValidator(_as_tuple)] = ()
    api_key_file: str | None = None
    allowed_hosts: Annotated[tuple[str, ...] | None, BeforeValidator(_at_commas)] = None
    num_engines: int = Field(1, ge=1)
    num_gateways: int = Field(1, ge=1)
    max_attempts: int = Field(3, ge=1)
    stream_resume: bool = False
    strict_fields: bool = False
    ray_address: str | None = None
    log_dir: Path | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        options.run(options)
    except ClusterLost as error:
        print(f"squadron {options.command}: {error}", file=sys.stderr)
        return 1
    except SquadronError as error:
        print(f"squadron {options.command}: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # of a file or a connection: ours to name, not to trace
        what = f"{error.filename}: {error.strerror}" if error.filename is not None else in_a_line(error)
        print(f"squadron {options.command}: {what}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="squadron", description="Serve Qwen2 and Qwen3 models on a Ray cluster.")
    parser.add_argument("--version", action="version", version=f"squadron {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="serve a model over HTTP, as OpenAI does"))
    _add_generate(commands.add_parser("generate", help="answer prompts, and end"))
    _add_demo(commands.add_parser("demo", help="serve the demo model at TP=2 × PP=2 and ask it a question"))
    _add_plan(commands.add_parser("plan", help="what a configuration needs, or why it is not possible"))
    trace.add_options(
        commands.add_parser("trace", help="what the last steps of a running server did, and why it took so long")
    )
    bench.add_options(commands.add_parser("bench", help="measure latency and throughput, of the engine or of a server"))
    chaos.add_options(
        commands.add_parser("chaos", help="streams to a staging cluster under faults: is any lost, doubled or changed?")
    )
    checkpoint_command.add_options(
        commands.add_parser(
            "checkpoint", help="verify a checkpoint's files, or write the manifest they are verified by"
        )
    )
    _add_make_checkpoint(commands.add_parser("make-checkpoint", help="write a checkpoint with random weights"))
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a folder in Hugging Face layout")
    parser.add_argument("--config", metavar="FILE", help="a YAML file of options; those on the command line win")
    add_engine_options(parser)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_serve)
    group = parser.add_argument_group("server")
    suppress: Any = argparse.SUPPRESS
    group.add_argument("--host", default=suppress, help=f"the address to listen on (default: {LOOPBACK})")
    group.add_argument("--port", type=int, default=suppress, metavar="N", help="the port to listen on (default: 8000)")
    group.add_argument(
        "--api-key",
        action="append",
        default=suppress,
        metavar="KEY",
        help="what clients must show; may be given several times. Other users of the machine see it: rather use the file, "
        f"or the environment variable {API_KEY_VARIABLE} (default: everybody may ask)",
    )
    group.add_argument(
        "--api-key-file",
        default=suppress,
        metavar="FILE",
        help="keys that clients may show, one a line; # for comments",
    )
    group.add_argument(
        "--allowed-hosts",
        default=suppress,
        metavar="HOST,...",
        help="names by which clients may ask, without ports; *.NAME: those below it, *: any (default: those of loopback "
        "where --host is one, else any)",
    )
    group.add_argument("--num-engines", type=int, default=suppress, metavar="N", help="engine replicas (default: 1)")
    group.add_argument("--num-gateways", type=int, default=suppress, metavar="N", help="gateway replicas (default: 1)")
    group.add_argument(
        "--max-attempts",
        type=int,
        default=suppress,
        metavar="N",
        help="engine replicas lost in a row under a request before its client hears of it (default: 3)",
    )
    group.add_argument(
        "--stream-resume",
        action="store_true",
        default=suppress,
        help="give events ids, by which a client may take a broken stream up again, from any gateway",
    )
    group.add_argument(
        "--strict-fields",
        action="store_true",
        default=suppress,
        help="refuse requests with fields that nobody knows; default: ignore these, and say so in the answer",
    )
    group.add_argument(
        "--ray-address",
        default=suppress,
        metavar="ADDRESS",
        help="of a running Ray cluster; default: one of this machine alone",
    )
    group.add_argument(
        "--log-dir",
        type=Path,
        default=suppress,
        metavar="DIR",
        help="keep the logs of the cluster there that it starts; default: after a failure, in a new folder of /tmp",
    )
    _add_model(parser)


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_generate)
    group = parser.add_argument_group("request")
    group.add_argument("--prompt", action="append", required=True, metavar="TEXT", help="may be given several times")
    group.add_argument(
        "--raw", action="store_true", help="go on with the text as it is, instead of answering it in a chat"
    )
    group.add_argument("--max-tokens", type=int, default=256, metavar="N", help="at most (default: 256)")
    group.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0 is greedy (default: 0)")
    _add_model(parser)


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=lambda options: demo.run(once=options.once, port=options.port))
    parser.add_argument("--once", action="store_true", help="end after the first answer")
    parser.add_argument(
        "--port", type=int, metavar="N", help="the port to listen on; default: 8000 or the next free one"
    )


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_plan)
    _add_model(parser)


def _add_make_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_make_checkpoint)
    parser.add_argument("folder", type=Path, metavar="DIR", help="where to write it")
    parser.add_argument("--like", choices=SHAPES, required=True, help="the architecture")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the weights (default: 0)")


def _serve(options: argparse.Namespace) -> None:
    config, server = _configure(options)
    plan = make_plan(config)
    is_lasting = server.ray_address is not None
    if not is_lasting:
        check_machine(config, plan, server.num_engines)
    api_keys = read_api_keys(server.api_key, server.api_key_file)
    os.environ.pop(API_KEY_VARIABLE, None)  # not for the processes of Ray, which would inherit it
    check_port(server.host, server.port)
    app = {
        "engine": config.model_dump(),
        "num_engines": server.num_engines,
        "num_gateways": server.num_gateways,
        "max_attempts": server.max_attempts,
        "stream_resume": server.stream_resume,
        "strict_fields": server.strict_fields,
        "api_keys": api_keys,
        "allowed_hosts": default_hosts(server.host) if server.allowed_hosts is None else server.allowed_hosts,
    }
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
            print(f"Anybody who reaches port {server.port} may ask: there is no API key", flush=True)
        print(f"Ready: http://{server.host}:{server.port}/v1 (Ray cluster {ray.address}); Ctrl-C ends it", flush=True)
        if ray.environment:
            print(
                "Other Ray jobs get in under",
                *(f"{name}={value}" for name, value in ray.environment.items()),
                flush=True,
            )
        stack.enter_context(told_events(APP_NAME))
        stack.callback(print, "Stopping; what has begun is finished first", flush=True)
        ray.wait()


def _generate(options: argparse.Namespace) -> None:
    params = SamplingParams(temperature=options.temperature, max_tokens=options.max_tokens)
    with LLM(**_merged(options)) as llm:
        if options.raw:
            outputs = llm.generate(options.prompt, params, use_tqdm=sys.stderr.isatty())
        else:
            chats = [[{"role": "user", "content": prompt}] for prompt in options.prompt]
            outputs = llm.chat(chats, params, use_tqdm=sys.stderr.isatty())
    for output in outputs:
        print(output.error or output.outputs[0].text)


def _plan(options: argparse.Namespace) -> None:
    config, server = _configure(options)
    plan = make_plan(config)
    print(plan, flush=True)
    need = check_machine(config, plan, server.num_engines) if server.ray_address is None else None
    if need is not None:
        print(need)


def _make_checkpoint(options: argparse.Namespace) -> None:
    shape = SHAPES[options.like]
    make_folder(options.folder)
    with progress(total=num_bytes(shape), unit="B", unit_scale=True, desc=str(options.folder)) as bar:
        make_checkpoint(options.folder, shape, seed=options.seed, progress=bar.update)


def _configure(options: argparse.Namespace) -> tuple[EngineConfig, ServerOptions]:
    """What `squadron serve` would be started with. Raises InvalidConfig."""
    values = _merged(options, ServerOptions.model_fields)
    given = {name: values.pop(name) for name in ServerOptions.model_fields if name in values}
    config = EngineConfig.create(ServerOptions.model_fields, **values)
    try:
        return config, ServerOptions(**given)
    except ValidationError as error:
        raise InvalidConfig(explain(error, [])) from None


def _merged(options: argparse.Namespace, more: Iterable[str] = ()) -> dict[str, Any]:
    """The options of the configuration file, and over them those of the command line: of the engine, and those named `more`."""
    values = read_config_file(options.config) if options.config else {}
    given = vars(options)
    values |= engine_arguments(options) | {name: given[name] for name in more if name in given}
    if options.model is not None:
        values["model"] = options.model
    if isinstance(values.get("model"), str):
        values["model"] = resolve_model(values["model"])
    return values


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """SIGTERM ends a command as Ctrl-C does."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
