"""What a look at a running engine takes with it: references, which the engine's thread collects
between two steps, and which any thread may read afterwards.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from engine.outputs import Phase, RequestMetrics
from engine.records.recorder import Recorder
from engine.records.timeline import Recovered, StepRecord
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Lane, Sequence

# The most of each that is taken, however much there is.
NUM_STEPS = 256
NUM_SEQUENCES = 64  # with blocks
NUM_WAITING = 16
NUM_ENDED = 16
NUM_KEPT_BLOCKS = 1 << 16
STEP_SECONDS = 2.0  # of the past whose steps are taken; of earlier ones the last NUM_OLD_STEPS
NUM_OLD_STEPS = 64


@dataclass(frozen=True, slots=True)
class SeenSequence:
    """A sequence of a request that has not ended."""

    request_id: str
    choice: int
    phase: Phase
    seconds: float  # since it arrived
    num_prompt_tokens: int
    num_cached_tokens: int  # of the prompt, found in the cache
    num_output_tokens: int
    num_blocks: int  # on the device or the host


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An engine between two steps. Times are seconds of `time.monotonic()`."""

    now: float
    steps: list[StepRecord]  # the last ones, which change no more
    recovered: list[Recovered]
    running: list[SeenSequence]  # the first of `tables`
    swapped: list[SeenSequence]
    waiting: list[SeenSequence]
    ended: list[tuple[str, RequestMetrics]]  # newest first
    tables: np.ndarray  # [sequences, blocks] int32, of all that run, padded with the null block
    kept_blocks: list[int]  # in the prefix index, whoever uses them
    num_blocks: int  # the null block, 0, counted in


def snapshot(recorder: Recorder, scheduler: Scheduler) -> Snapshot:
    """In the engine's thread. Takes a fraction of a millisecond, also with 256 sequences."""
    now = time.monotonic()
    queues, blocks = scheduler.queues, scheduler.blocks
    running = [(lane, seq) for lane in queues.running for seq in lane.seqs if seq.row is not None]
    longest = max((len(seq.block_table) for _, seq in running), default=0)
    return Snapshot(
        now,
        _last_steps(recorder.timeline.records, now),
        list(recorder.timeline.recovered),
        [_seen(lane, seq, now) for lane, seq in running[:NUM_SEQUENCES]],
        [_seen(lane, seq, now) for lane, seq in islice(_pairs(queues.swapped), NUM_SEQUENCES)],
        [_seen(lane, seq, now) for lane, seq in islice(_pairs(queues.waiting), NUM_WAITING)],
        recorder.last_ended(NUM_ENDED),
        blocks.rows.tables[np.array([seq.row for _, seq in running], np.intp), :longest],
        blocks.device.indexed(NUM_KEPT_BLOCKS),
        blocks.device.num_blocks,
    )


def _last_steps(records: deque[StepRecord], now: float) -> list[StepRecord]:
    found: list[StepRecord] = []
    for record in islice(reversed(records), NUM_STEPS):
        if len(found) >= NUM_OLD_STEPS and record.processed < now - STEP_SECONDS:
            break
        found.append(record)
    return found[::-1]


def _pairs(lanes: Iterable[Lane]) -> Iterator[tuple[Lane, Sequence]]:
    return ((lane, seq) for lane in lanes for seq in lane.seqs)


def _seen(lane: Lane, seq: Sequence, now: float) -> SeenSequence:
    group = lane.group
    return SeenSequence(
        group.request.id,
        seq.choice,
        group.metrics.phase,
        now - group.metrics.arrival_time,
        seq.num_prompt_tokens,
        group.num_cached_tokens,
        seq.num_output_tokens,
        len(seq.block_table) or len(seq.host_block_table),
    )
