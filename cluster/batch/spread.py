"""Chunks of lines spread over actors, by Ray Data, which restarts those that die and hands the
answers back in order.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any

import ray.data
from ray.exceptions import RayError

from cluster.batch.answering import ANSWERS, Answerer, ServerLost
from cluster.batch.files.index import CHUNK_LINES, Chunk
from cluster.batch.run import Run

LINES_PER_ACTOR = 256  # that it answers at once: more than a process can keep up with
CPUS = 0.01  # Ray's logical ones: the actors wait for the engines


def answers(run: Run, chunks: Sequence[Chunk]) -> Iterator[bytes]:
    """Of each chunk, in their order. Raises ServerLost."""
    if not chunks:
        return
    _be_quiet()
    num_actors = math.ceil(run.concurrency / LINES_PER_ACTOR)
    per_actor = math.ceil(run.concurrency / num_actors)
    calls = 2 * math.ceil(per_actor / CHUNK_LINES) + 1  # so that lines wait while others end
    answered = ray.data.from_items([chunk.row() for chunk in chunks], override_num_blocks=len(chunks)).map_batches(
        Answerer,
        batch_size=1,
        fn_constructor_args=(run.source, run.door, per_actor, run.patience, run.url),
        compute=ray.data.ActorPoolStrategy(
            size=num_actors, max_concurrent_calls_per_actor=calls, max_tasks_in_flight_per_actor=2 * calls
        ),
        num_cpus=CPUS,
    )
    for chunk, row in zip(chunks, _without_rays_words(iter(answered.iter_rows())), strict=True):
        assert row["first"] == chunk.first
        yield row[ANSWERS]


def _without_rays_words(rows: Iterator[Any]) -> Iterator[Any]:
    """Ray wraps an actor's exception in several of its own."""
    try:
        yield from rows
    except RayError as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ServerLost):
                raise ServerLost(str(cause)) from None
            cause = getattr(cause, "cause", None) or cause.__cause__
        raise


def _be_quiet() -> None:
    """Ray Data keeps the order, and leaves progress to us."""
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
