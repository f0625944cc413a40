"""Progress bars for long work; if stderr is not a terminal, occasional lines instead, and only if
the work takes long.
"""

import sys
from typing import Any

from tqdm import tqdm

TICK_SECONDS = 0.2
LINE_SECONDS = 10.0


def progress(*, delay: float = LINE_SECONDS, **options: Any) -> "tqdm[None]":
    """A bar on stderr; `options` are tqdm's own. `delay`: seconds before the first line if stderr
    is not a terminal.
    """
    if sys.stderr.isatty():
        return tqdm(mininterval=TICK_SECONDS, maxinterval=TICK_SECONDS, **options)
    return tqdm(mininterval=LINE_SECONDS, maxinterval=LINE_SECONDS, delay=delay, **options)
