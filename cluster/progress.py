"""Bars for what takes long, which can be read where no one sees bars too: in a file, a line now and then."""

import sys
from typing import Any

from tqdm import tqdm

TICK_SECONDS = 0.2
LINE_SECONDS = 10.0


def progress(**options: Any) -> "tqdm[None]":
    """A bar on stderr; `options` are tqdm's own."""
    seconds = TICK_SECONDS if sys.stderr.isatty() else LINE_SECONDS
    return tqdm(mininterval=seconds, maxinterval=seconds, **options)
