"""`squadron make-checkpoint`: random weights of a known shape."""

import argparse
from pathlib import Path

from cluster.checkpoint.dummy import make_checkpoint, make_folder, num_bytes
from cluster.checkpoint.shapes import SHAPES
from cluster.progress import progress
from engine.errors import InvalidConfig

NUM_SEEDS = 1 << 64


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_run)
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder to write to")
    parser.add_argument("--like", choices=SHAPES, required=True, help="the model whose shape to use")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the weights (default: 0)")


def _run(options: argparse.Namespace) -> None:
    shape = SHAPES[options.like]
    if not 0 <= options.seed < NUM_SEEDS:
        raise InvalidConfig(f"seed={options.seed} is not from 0 to {NUM_SEEDS - 1}")
    make_folder(options.folder)
    with progress(total=num_bytes(shape), unit="B", unit_scale=True, desc=str(options.folder)) as bar:
        make_checkpoint(options.folder, shape, seed=options.seed, progress=bar.update)
