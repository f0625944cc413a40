"""A snapshot of an engine as plain values, small enough to be sent every second."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from engine.records.snapshot import NUM_SEQUENCES, Snapshot
from engine.records.timeline import StepRecord

NUM_CELLS = 1024  # of the block map
# What a cell is; a sequence's own are FIRST + its place among those that run.
FREE, KEPT, SHARED, FIRST = 0, 1, 2, 3
OTHERS = FIRST + NUM_SEQUENCES  # of all sequences that are not told

# Of a step, in this order.
STEP_FIELDS = (
    *("step", "epoch", "scheduled", "submitted", "finished", "processed"),  # times in seconds of the engine's clock
    *("sequences", "prefill_tokens", "decoding", "swapped_out", "swapped_in", "preempted"),
    "rank_ms",  # milliseconds that each rank worked
)


Runs = list[tuple[int, int]]  # what the next ones are, and how many of them


@dataclass(frozen=True, slots=True)
class BlockMap:
    """`cells` are the device's blocks in order, null block left out, `blocks_per_cell` of them
    each: a cell is the highest of what its blocks are. `tables` are those of the sequences that are
    told, in the same terms.
    """

    blocks_per_cell: int
    cells: Runs
    tables: list[Runs]


def view(snapshot: Snapshot) -> dict[str, Any]:
    """In any thread."""
    return {
        "now": snapshot.now,
        "step_fields": STEP_FIELDS,
        "steps": _steps(snapshot.steps),
        "recovered": [asdict(each) for each in snapshot.recovered],
        "running": [asdict(each) for each in snapshot.running],
        "swapped": [asdict(each) for each in snapshot.swapped],
        "waiting": [asdict(each) for each in snapshot.waiting],
        "ended": [
            {"request_id": request_id, "seconds": sum(metrics.seconds.values()), "finished": metrics.finished_time}
            for request_id, metrics in snapshot.ended
        ],
        "blocks": asdict(block_map(snapshot.tables, snapshot.kept_blocks, snapshot.num_blocks)),
    }


def block_map(tables: np.ndarray, kept_blocks: list[int], num_blocks: int) -> BlockMap:
    """`tables` [sequences, blocks] int32, padded with the null block; `kept_blocks` are in the
    prefix index; `num_blocks` with the null block.
    """
    cells = np.full(num_blocks, FREE, np.int32)
    cells[kept_blocks] = KEPT
    sequences, columns = np.nonzero(tables)
    used = tables[sequences, columns]
    cells[used] = np.minimum(FIRST + sequences, OTHERS)
    cells[np.bincount(used, minlength=num_blocks) > 1] = SHARED
    blocks_per_cell = max(1, -(-(num_blocks - 1) // NUM_CELLS))
    starts = np.arange(1, num_blocks, blocks_per_cell)
    told = [_runs(cells[table[table != 0]]) for table in tables[:NUM_SEQUENCES]]
    return BlockMap(blocks_per_cell, _runs(np.maximum.reduceat(cells, starts)), told)


def _runs(values: np.ndarray) -> Runs:
    """[N] int32, none below 0."""
    edges = np.flatnonzero(np.diff(values, prepend=-1))
    lengths = np.diff(edges, append=len(values))
    return list(zip(values[edges].tolist(), lengths.tolist(), strict=True))


def _steps(records: list[StepRecord]) -> list[tuple[Any, ...]]:
    times = np.array([(each.schedule_start, each.submitted, each.finished, each.processed) for each in records])
    return [
        (
            *(record.step, record.epoch, *at, len(record.request_ids), *_tokens(record)),
            *(record.num_swapped_out, record.num_swapped_in, len(record.preempted)),
            [round(nanoseconds / 1e6, 2) for nanoseconds in record.execute_ns],
        )
        for record, at in zip(records, times.round(5).tolist(), strict=True)
    ]


def _tokens(record: StepRecord) -> tuple[int, int]:
    """Of prompts; and how many sequences decode."""
    num_tokens = record.num_tokens
    if record.num_drafts:
        num_tokens = np.where(num_tokens == 1 + np.array(record.num_drafts), 1, num_tokens)
    num_decoding = int(np.count_nonzero(num_tokens == 1))
    return int(num_tokens.sum()) - num_decoding, num_decoding
