"""The options of `squadron bench latency|throughput|serve`, and the way from a benchmark's outcome
to its reports.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from cluster.bench import offline, serve
from cluster.bench.plot import write_plot
from cluster.bench.report import Outcome, table, write_json
from cluster.bench.workload import Lengths, lengths
from cluster.commands.command_line import add_server_options
from cluster.commands.options import add_engine_options
from engine.errors import InvalidConfig


def add_options(parser: argparse.ArgumentParser) -> None:
    """The benchmarks below `bench`; the namespace's `run` is the function below."""
    parser.set_defaults(run=run)
    benchmarks = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    _add_latency(benchmarks.add_parser("latency", help="one batch at a time, in this process or on Ray"))
    _add_throughput(benchmarks.add_parser("throughput", help="many requests at once, in this process or on Ray"))
    _add_serve(
        benchmarks.add_parser(
            "serve", help="requests to a server, sent at a given rate whether the server keeps up or not"
        )
    )


def run(options: argparse.Namespace) -> None:
    """Measure, print and write; status 1 if any request failed. Raises InvalidConfig,
    InvalidRequest.
    """
    _check_files(options)
    outcome: Outcome = options.measure(options)
    print(table(outcome))
    if options.output is not None:
        write_json(options.output, options.benchmark, outcome)
    if options.plot is not None:
        write_plot(options.plot, f"squadron bench {options.benchmark}", outcome.samples)
    if outcome.failures:
        failed = f"{outcome.failures.total()} of {outcome.num_requests} requests failed"
        sys.exit(f"squadron bench {options.benchmark}: {failed}")


def _add_latency(parser: argparse.ArgumentParser) -> None:
    group = _workload(parser, offline.latency, input_len=Lengths(32, 32), output_len=Lengths(128, 128))
    group.add_argument(
        "--batch-size", type=count, nargs="+", default=[1], metavar="N", help="batch sizes to measure (default: 1)"
    )
    group.add_argument("--num-iters", type=count, default=10, metavar="N", help="timed batches (default: 10)")
    group.add_argument(
        "--num-iters-warmup",
        type=count_or_none,
        default=3,
        metavar="N",
        help="untimed batches before the timed ones (default: 3)",
    )
    _add_model(parser)


def _add_throughput(parser: argparse.ArgumentParser) -> None:
    group = _workload(parser, offline.throughput, input_len=Lengths(16, 256), output_len=Lengths(16, 128))
    group.add_argument("--num-prompts", type=count, default=256, metavar="N", help="requests (default: 256)")
    _add_model(parser)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    group = _workload(parser, serve.measure, input_len=Lengths(128, 128), output_len=Lengths(128, 128))
    add_server_options(group)
    group.add_argument("--model", metavar="NAME", help="model name; default: the first that the server lists")
    group.add_argument("--num-prompts", type=count, default=200, metavar="N", help="requests (default: 200)")
    group.add_argument(
        "--request-rate",
        type=rate,
        default=float("inf"),
        metavar="X",
        help="requests per second, as a Poisson process; default: all at once",
    )
    group.add_argument("--max-concurrency", type=count, metavar="N", help="most requests in flight; default: no limit")
    group.add_argument(
        "--goodput",
        type=serve.objective,
        nargs="+",
        default=[],
        metavar="METRIC:MS",
        help="limits in ms within which a request counts as good, on ttft, tpot and e2el; for example ttft:200 tpot:50",
    )
    group.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0 is greedy (default: 0)")
    group.add_argument(
        "--vocab-size",
        type=count,
        default=256,
        metavar="N",
        help="prompts use token ids below this (default: 256, which every vocabulary has)",
    )
    group.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of prompts, lengths and arrivals (default: 0)"
    )


def _workload(
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], Outcome],
    *,
    input_len: Lengths,
    output_len: Lengths,
) -> argparse._ArgumentGroup:
    """The options of every benchmark; answers have full length, whatever the model generates."""
    parser.set_defaults(measure=measure)
    group = parser.add_argument_group("benchmark")
    for name, default, what in (("input", input_len, "prompts"), ("output", output_len, "answers")):
        group.add_argument(
            f"--{name}-len",
            type=lengths,
            default=default,
            metavar="N[:M]",
            help=f"tokens of the {what}, uniformly from N to M (default: {default})",
        )
    group.add_argument("--output", type=Path, metavar="FILE", help="JSON file to write figures and samples to")
    group.add_argument("--plot", type=Path, metavar="FILE.svg", help="SVG file to draw the distributions in")
    return group


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder in Hugging Face layout")
    add_engine_options(parser)


def count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return int(text)


def count_or_none(text: str) -> int:
    return int(text) if int(text) == 0 else count(text)


def rate(text: str) -> float:
    if not float(text) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return float(text)


def _check_files(options: argparse.Namespace) -> None:
    """Before measuring, so that no figures are lost. Raises InvalidConfig."""
    for path in (options.output, options.plot):
        if path is not None and not path.parent.is_dir():
            raise InvalidConfig(f"cannot write {path}: there is no folder {path.parent}")
        if path is not None and path.is_dir():
            raise InvalidConfig(f"cannot write {path}: it is a folder")
    if options.plot is not None and options.plot.suffix != ".svg":
        raise InvalidConfig(f"cannot draw {options.plot}: plots are SVG, so the name ends in .svg")
