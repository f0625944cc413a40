"""A snapshot as it is sent: what a reader makes of it, and its size."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from engine.outputs import RequestMetrics
from engine.records.snapshot import SeenSequence, Snapshot
from engine.records.timeline import Recovered
from engine.records.view import FIRST, FREE, KEPT, NUM_CELLS, OTHERS, SHARED, STEP_FIELDS, Runs, block_map, view
from tests.engine.records.test_timeline import record

NOTHING = np.zeros((0, 0), np.int32)


def spread(runs: Runs) -> list[int]:
    return [kind for kind, count in runs for _ in range(count)]


def test_a_block_is_free_kept_shared_or_of_its_sequence() -> None:
    tables = np.array([[3, 5, 0, 0], [3, 7, 8, 0]], np.int32)
    blocks = block_map(tables, [1, 3, 5], 10)
    first, second = FIRST, FIRST + 1
    assert blocks.blocks_per_cell == 1
    assert spread(blocks.cells) == [KEPT, FREE, SHARED, FREE, first, FREE, second, second, FREE]
    assert [spread(table) for table in blocks.tables] == [[SHARED, first], [SHARED, second, second]]


def test_an_empty_cache_is_one_run() -> None:
    assert asdict(block_map(NOTHING, [], 8)) == {"blocks_per_cell": 1, "cells": [(FREE, 7)], "tables": []}


@pytest.mark.parametrize("num_blocks", [NUM_CELLS + 1, NUM_CELLS + 2, 100_000])
def test_of_many_blocks_several_are_a_cell(num_blocks: int) -> None:
    last = num_blocks - 1
    blocks = block_map(np.array([[1, last]], np.int32), [2], num_blocks)
    cells = spread(blocks.cells)
    assert len(cells) == -(-(num_blocks - 1) // blocks.blocks_per_cell) <= NUM_CELLS
    assert cells[0] == cells[-1] == FIRST
    assert spread(blocks.tables[0]) == [FIRST, FIRST]


def test_sequences_that_are_not_told_are_others() -> None:
    tables = np.arange(1, 301, dtype=np.int32).reshape(300, 1)
    blocks = block_map(tables, [], 301)
    assert spread(blocks.cells) == [*range(FIRST, OTHERS), *[OTHERS] * (300 - (OTHERS - FIRST))]
    assert len(blocks.tables) == OTHERS - FIRST


def test_a_step_tells_what_was_prompt_and_what_decoding() -> None:
    step = replace(record(7, ["a", "b", "c"], [1, 5, 3]), num_drafts=[0, 0, 2], num_accepted=[0, 0, 1], preempted=["d"])
    told = view(replace(EMPTY, steps=[step]))
    assert told["step_fields"] == STEP_FIELDS
    fields = dict(zip(STEP_FIELDS, told["steps"][0], strict=True))
    assert (fields["prefill_tokens"], fields["decoding"], fields["sequences"], fields["preempted"]) == (5, 2, 3, 1)
    assert (fields["scheduled"], fields["finished"], fields["rank_ms"]) == (7.0, 7.75, [250.0, 250.0])


SEEN = SeenSequence("0123456789abcdef-1234567", 0, "decode", 12.5, 1000, 500, 300, 100)
ENDED = RequestMetrics(1.0, 1.0, finished_time=3.0, seconds={"queue": 0.5, "decode": 1.5})
EMPTY = Snapshot(1e6, [], [], [], [], [], [], NOTHING, [], 8)


def test_it_is_json_and_small_with_as_much_as_there_may_be() -> None:
    rng = np.random.default_rng(1)
    tables = rng.permutation(np.arange(1, 256 * 64 + 1, dtype=np.int32)).reshape(256, 64)
    steps = [replace(record(step, ["a"] * 256, [1] * 256), execute_ns=(12_345_678,) * 8) for step in range(256)]
    full = Snapshot(
        1e6,
        steps,
        [Recovered(1.0, 2.0)] * 16,
        [SEEN] * 64,
        [SEEN] * 64,
        [SEEN] * 16,
        [("r", ENDED)] * 16,
        tables,
        [],
        20_000,
    )
    told = view(full)
    assert told["ended"][0] == {"request_id": "r", "seconds": 2.0, "finished": 3.0}
    assert told["recovered"][0] == {"start": 1.0, "end": 2.0}
    assert len(json.dumps(told)) < 150_000
