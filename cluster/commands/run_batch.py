"""`squadron run-batch`: answers a file of requests with a running server or a model of its own."""

import argparse
import importlib
from typing import Any

from cluster.commands.batch_servers import add_servers, check_servers, door_to
from cluster.commands.options import add_engine_options
from cluster.launch.packages import check_batch_packages
from cluster.progress import progress
from engine.errors import InvalidConfig, without_secret


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_run)
    group = parser.add_argument_group("batch")
    group.add_argument(
        "-i",
        "--input-file",
        required=True,
        metavar="FILE",
        help="requests, one JSON object per line; a path or s3://...",
    )
    group.add_argument("-o", "--output-file", required=True, metavar="FILE", help="the answers, in the same order")
    group.add_argument(
        "--output-tmp-dir",
        metavar="DIR",
        help="folder for partial answers, from which a killed run continues (default: FILE.parts)",
    )
    group.add_argument(
        "--concurrency", type=int, default=64, metavar="N", help="number of lines answered at once (default: 64)"
    )
    group.add_argument(
        "--patience",
        type=float,
        default=600.0,
        metavar="S",
        help="the run ends after this many seconds without an answer; run it again to continue (default: 600)",
    )
    add_servers(parser)
    add_engine_options(parser)


def _run(options: argparse.Namespace) -> None:
    check_servers(options)
    if options.concurrency < 1 or not options.patience > 0:
        raise InvalidConfig(f"concurrency={options.concurrency} and patience={options.patience:g} must be above 0")
    check_batch_packages("run-batch")
    pipeline: Any = importlib.import_module("cluster.batch.pipeline")
    of_run: Any = importlib.import_module("cluster.batch.run")
    place: Any = importlib.import_module("cluster.batch.files.place").Place
    alone: Any = importlib.import_module("cluster.batch.files.parts").alone
    source, output = place.at(options.input_file), place.at(options.output_file)
    if not source.is_file:
        raise InvalidConfig(f"input_file={without_secret(options.input_file)}: there is no such file")
    if output.is_folder:
        raise InvalidConfig(f"output_file={without_secret(options.output_file)} is a folder; name a file")
    parts = place(output.filesystem, f"{output.path}.parts")  # a URI goes on behind its path
    if options.output_tmp_dir:
        parts = place.at(options.output_tmp_dir)
    with alone(parts), door_to(options) as door, progress(desc="lines") as bar:

        def told(counts: Any, num_lines: int) -> None:
            bar.total = num_lines
            bar.set_postfix_str(f"{counts.failed} failed", refresh=False)
            bar.update(counts.total - bar.n)

        run = of_run.Run(
            source=source,
            parts=parts,
            door=door,
            concurrency=options.concurrency,
            patience=options.patience,
        )
        answered = pipeline.answer_all(run, told)
        answered.join(output)
        answered.delete()
    counts = answered.counts
    written = without_secret(options.output_file)
    print(f"{counts.total} lines: {counts.completed} answered, {counts.failed} failed; {written}")
