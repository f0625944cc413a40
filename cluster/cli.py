"""The `squadron` command: its parser, and one error line and exit status per kind of failure."""

import argparse
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from cluster import bench, chaos
from cluster.commands import demo, generate, plan, run_batch, serve, trace
from cluster.commands.checkpoints import checkpoint, make_checkpoint
from cluster.commands.command_line import CommandParser
from cluster.commands.operating import collect_env, doctor, status
from cluster.version import VERSION
from engine.errors import ClusterLost, SquadronError, in_a_line

SERVERS = ("serve", "demo")  # commands that end well by SIGTERM, and not otherwise


class Terminated(KeyboardInterrupt):
    """SIGTERM ends a command like Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        options.run(options)
    except ClusterLost as error:
        print(f"squadron {options.command}: {error}", file=sys.stderr)
        return 1
    except SquadronError as error:
        print(f"squadron {options.command}: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # of a file or a connection: an error line, not a traceback
        what = f"{error.filename}: {error.strerror}" if error.filename is not None else in_a_line(error)
        print(f"squadron {options.command}: {what}", file=sys.stderr)
        return 2
    except Terminated:
        return 0 if options.command in SERVERS else 128 + signal.SIGTERM
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="squadron", description="Serve Qwen2 and Qwen3 models on a Ray cluster.")
    parser.add_argument("--version", action="version", version=f"squadron {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve.add_options(commands.add_parser("serve", help="serve a model over HTTP, with OpenAI's API"))
    generate.add_options(commands.add_parser("generate", help="answer prompts and exit"))
    run_batch.add_options(commands.add_parser("run-batch", help="answer a file of requests, line by line, and exit"))
    demo.add_options(commands.add_parser("demo", help="serve the demo model at TP=2 × PP=2 and ask it a question"))
    plan.add_options(commands.add_parser("plan", help="print what a configuration needs, or why it is impossible"))
    doctor.add_options(commands.add_parser("doctor", help="check a cluster, and whether a model fits; with remedies"))
    status.add_options(commands.add_parser("status", help="print what a server serves, or what a Ray cluster runs"))
    collect_env.add_options(commands.add_parser("collect-env", help="print what a problem's report should say"))
    trace.add_options(
        commands.add_parser("trace", help="write a running server's last steps, or print where a request's time went")
    )
    bench.add_options(commands.add_parser("bench", help="measure latency and throughput of an engine or a server"))
    chaos.add_options(
        commands.add_parser("chaos", help="check that faults on a staging cluster lose, repeat or change no stream")
    )
    checkpoint.add_options(
        commands.add_parser("checkpoint", help="verify a checkpoint's files, or write the manifest for it")
    )
    make_checkpoint.add_options(commands.add_parser("make-checkpoint", help="write a checkpoint with random weights"))
    return parser


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise Terminated


if __name__ == "__main__":
    sys.exit(main())
