"""From a file of requests to the answers, in the order of its lines.

They are written in parts of about a second each, so that a run that is killed goes on behind the
last part when it is started again.
"""

import time
from collections.abc import Callable

from cluster.batch.files.custom_ids import refuse_twins
from cluster.batch.files.index import Index, read_index
from cluster.batch.files.parts import Counts, Parts
from cluster.batch.run import Run
from cluster.batch.spread import answers

PART_SECONDS = 1.0

Told = Callable[[Counts, int], None]  # how many lines there are answers to, of how many


def answer_all(run: Run, told: Told) -> Parts:
    """Answers what is not answered yet. `told` is called at the beginning and with each part; what
    it raises ends the run. Raises InvalidRequest, InvalidConfig, ServerLost, OSError.
    """
    index = read_index(run.source, run.max_lines)
    if run.refuses_twins:
        refuse_twins(run.source, index)
    parts = Parts(run.parts, index.digest)
    told(parts.counts, index.num_lines)
    lines: list[bytes] = []
    written = time.monotonic()
    for of_chunk in answers(run, index.after(parts.num_lines)):
        lines += of_chunk.splitlines()
        if time.monotonic() > written + PART_SECONDS:
            _write(parts, lines, index, told)
            lines, written = [], time.monotonic()
    if lines:
        _write(parts, lines, index, told)
    assert parts.num_lines == index.num_lines
    return parts


def _write(parts: Parts, lines: list[bytes], index: Index, told: Told) -> None:
    parts.add(lines)
    told(parts.counts, index.num_lines)
