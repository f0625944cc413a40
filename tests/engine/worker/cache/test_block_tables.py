"""Each step's blocks, as ranks find them by what steps tell, are those of the driver's tables."""

import random
from concurrent.futures import Future

import numpy as np
import pytest

from engine.core.llm_engine import LLMEngine
from engine.outputs import SamplerOutput
from engine.step import ExecuteModelRequest
from engine.worker.cache.block_tables import BlockTables
from tests.engine.support.workloads import Knobs, make_engine, random_requests, run
from tests.engine.worker.steps import Part, ints, make_step


class Watched:
    """The tables as a rank of this engine has them, over all its epochs."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine, self.tables = engine, BlockTables()
        self.submit, engine.executor.submit = engine.executor.submit, self.compare
        self.num_blocks = self.num_told = 0

    def compare(self, request: ExecuteModelRequest) -> Future[SamplerOutput]:
        told = self.tables.read(request)
        tables = self.engine.scheduler.blocks.rows.tables
        for row, blocks in zip(request.table_rows, np.split(told.block_ids, told.block_starts[1:-1]), strict=False):
            assert blocks.all() and blocks.tolist() == tables[row, : len(blocks)].tolist()
        self.num_blocks += len(told.block_ids)
        self.num_told += len(request.table_changes)
        return self.submit(request)


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
def test_whatever_sequences_go_through(depth: int, drafts: bool) -> None:
    speculative = {"speculative_config": {"model": "any", "num_speculative_tokens": 3}} if drafts else {}
    knobs = Knobs(num_blocks=40, num_cpu_blocks=20, depth=depth, runs_ahead=True, overrides=speculative)
    engine = make_engine(knobs)
    watched = Watched(engine)
    rng = random.Random(depth)
    engine.executor.crash_at = {40, 41, 90}
    run(engine, random_requests(rng, 40))
    stats = engine.stats()
    assert stats.num_recoveries and stats.num_preemptions_swap
    assert watched.num_told < watched.num_blocks / 2


def test_a_step_that_brings_its_blocks_stays_as_it_is() -> None:
    step = make_step(0, [Part([1, 2], start=0, blocks=[3])])
    assert BlockTables().read(step) is step


def test_of_changes_in_one_place_the_last_one_counts() -> None:
    tables = BlockTables()
    changes = np.array([[5, 0, 8], [1, 0, 3], [5, 0, 9], [1, 1, 4]], np.int32)
    step = make_step(0, [Part([1] * 20, start=0, blocks=[3, 4]), Part([1], start=0, blocks=[9])])
    asked = {"block_starts": ints(), "block_ids": ints(), "table_rows": ints(1, 5)}
    told = tables.read(make_step(0, [Part([1] * 20, 0, [3, 4]), Part([1], 0, [9])], **asked, table_changes=changes))
    assert (told.block_starts.tolist(), told.block_ids.tolist()) == (step.block_starts.tolist(), [3, 4, 9])
    later = tables.read(make_step(1, [Part([1] * 20, 0, [3, 4])], **asked | {"table_rows": ints(1)}))
    assert later.block_ids.tolist() == [3, 4]
