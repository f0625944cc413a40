"""The `squadron` command: its parser, and one error line and exit status per kind of failure."""

import argparse
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from cluster.commands.command_line import CommandParser
from cluster.version import VERSION
from engine.errors import ClusterLost, SquadronError, in_a_line, without_secret

SERVERS = ("serve", "demo")  # commands that end well by SIGTERM, and not otherwise
# Each command's module, with `add_options`, and what it does. One is imported when it is asked for:
# most import Ray, which takes seconds.
COMMANDS = {
    "serve": ("cluster.commands.serve", "serve a model over HTTP, with OpenAI's API"),
    "generate": ("cluster.commands.generate", "answer prompts and exit"),
    "run-batch": ("cluster.commands.run_batch", "answer a file of requests, line by line, and exit"),
    "demo": ("cluster.commands.demo", "serve the demo model at TP=2 × PP=2 and ask it a question"),
    "plan": ("cluster.commands.plan", "print what a configuration needs, or why it is impossible"),
    "doctor": ("cluster.commands.operating.doctor", "check a cluster, and whether a model fits; with remedies"),
    "status": ("cluster.commands.operating.status", "print what a server serves, or what a Ray cluster runs"),
    "collect-env": ("cluster.commands.operating.collect_env", "print what a problem's report should say"),
    "trace": (
        "cluster.commands.trace",
        "write a running server's last steps, or print where a request's time went",
    ),
    "bench": ("cluster.bench.command", "measure latency and throughput of an engine or a server"),
    "chaos": (
        "cluster.chaos.command",
        "check that faults on a staging cluster lose, repeat or change no stream",
    ),
    "checkpoint": (
        "cluster.commands.checkpoints.checkpoint",
        "verify a checkpoint's files, or write the manifest for it",
    ),
    "make-checkpoint": ("cluster.commands.checkpoints.make_checkpoint", "write a checkpoint with random weights"),
}


class Terminated(KeyboardInterrupt):
    """SIGTERM ends a command like Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    signal.signal(signal.SIGTERM, _terminate)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: a path need not be a text
    options = argparse.Namespace(command="")
    try:
        _parser().parse_args(arguments, options)
        options.run(options)
        if sys.stdout is not None:
            sys.stdout.flush()  # what cannot be written is an error of the command
    except SystemExit:
        _is_output_taken()
        raise
    except ClusterLost as error:
        print(f"squadron {options.command}: {error}", file=sys.stderr)
        return 1
    except SquadronError as error:
        print(f"squadron {options.command}: {without_secret(str(error))}", file=sys.stderr)
        return 2
    except OSError as error:  # of a file or a connection: an error line, not a traceback
        if not _is_output_taken() and isinstance(error, BrokenPipeError):
            return 128 + signal.SIGPIPE  # its reader has seen enough, as `head` has
        what = f"{error.filename}: {error.strerror}" if error.filename is not None else in_a_line(error)
        print(f"squadron {options.command}: {what}", file=sys.stderr)
        return 2
    except Terminated:
        return 0 if options.command in SERVERS else 128 + signal.SIGTERM
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _is_output_taken() -> bool:
    """Whether what was printed can be written; if not, Python does not try again when it ends."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return False
    return True


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="squadron", description="Serve Qwen2 and Qwen3 models on a Ray cluster.")
    parser.add_argument("--version", action="version", version=f"squadron {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_ParserOfCommand)
    for name, (module, text) in COMMANDS.items():
        commands.add_parser(name, help=text, module=module)
    return parser


class _ParserOfCommand(CommandParser):
    """It gets the options of the command in `module` when they are needed."""

    def __init__(self, *, module: str = "", **options: Any) -> None:
        super().__init__(**options)
        self._module = module

    def parse_known_args(  # type: ignore[override]  # as in `CommandParser`
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        self._add_options()
        return super().parse_known_args(args, namespace)

    def format_help(self) -> str:
        self._add_options()
        return super().format_help()

    def _add_options(self) -> None:
        module, self._module = self._module, ""
        if module:
            importlib.import_module(module).add_options(self)


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise Terminated


if __name__ == "__main__":
    sys.exit(main())
