"""Checkpoints to measure on: the demo's, and random weights of a shape, made once and kept."""

import os
from pathlib import Path

from cluster.checkpoint.dummy import DEMO, make_checkpoint, make_folder, num_bytes
from cluster.checkpoint.shapes import SHAPES
from cluster.progress import progress

SHAPE = "qwen2.5-0.5b"
SEED = 0


def cache() -> Path:
    """Where random weights are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "squadron"


def cached_folder(name: str) -> str:
    """The folder of "demo" or of one of `cluster.checkpoint.dummy.SHAPES`."""
    if name == "demo":
        return str(DEMO)
    folder = cache() / name
    if not (folder / "config.json").exists():  # the last file that is written
        make_folder(folder)
        with progress(total=num_bytes(SHAPES[name]), unit="B", unit_scale=True, desc=str(folder)) as bar:
            make_checkpoint(folder, SHAPES[name], seed=SEED, progress=bar.update)
    return str(folder)
