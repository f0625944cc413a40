"""A plan becomes arrays: whose rows are where, what they read, and what is sampled."""

from concurrent.futures import Future
from itertools import pairwise

import numpy as np

from engine.batch.batch import build_request
from engine.core.llm_engine import LLMEngine
from engine.outputs import SamplerOutput
from engine.sampling_params import SamplingParams
from engine.step import ExecuteModelRequest
from engine.worker.cache.block_tables import BlockTables
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, make_engine

PARAMS = SamplingParams(max_tokens=9, ignore_eos=True)


def next_request(engine: LLMEngine) -> ExecuteModelRequest:
    """Scheduled and built, and not executed."""
    return build_request(engine.scheduler.schedule(), engine.scheduler.blocks, epoch=7)


def rows_of(request: ExecuteModelRequest) -> list[range]:
    """Token rows of each sequence."""
    starts = request.query_starts.tolist()
    return [range(start, end) for start, end in pairwise(starts)]


def test_a_chunk_beside_a_whole_prompt_and_then_beside_its_next_token() -> None:
    engine = make_engine(Knobs(depth=2, runs_ahead=True, overrides={"max_num_batched_tokens": 32}))
    short, long = list(range(20)), list(range(1, 31))
    add_request(engine, "short", short, PARAMS)
    add_request(engine, "long", long, PARAMS)

    first = next_request(engine)
    assert (first.epoch, first.step) == (7, 0)
    assert first.input_ids.tolist() == short + long[:12]
    assert first.positions.tolist() == [*range(20), *range(12)]
    assert rows_of(first) == [range(20), range(20, 32)]
    assert first.context_lens.tolist() == [20, 12]
    assert first.sampled_rows.tolist() == [19], "the other prompt's end is not reached"

    second = next_request(engine)
    assert rows_of(second) == [range(1), range(1, 19)]
    assert second.positions.tolist() == [20, *range(12, 30)]
    # The first one's token is not known yet: it is what row 0 of the step before samples.
    assert second.input_ids.tolist() == [0, *long[12:]]
    assert (second.carried_steps.tolist(), second.carried_rows.tolist()) == ([0], [[0, 0]])
    assert second.sampled_rows.tolist() == [0, 18]
    assert second.sampling.position.tolist() == [21, 30]


def tables_of(request: ExecuteModelRequest) -> list[np.ndarray]:
    return np.split(request.block_ids, request.block_starts[1:-1])


def test_slots_follow_the_blocks() -> None:
    engine = make_engine(Knobs())
    for number in range(3):
        add_request(engine, str(number), [number + 1] * (16 * number + 5), PARAMS)
    request = BlockTables().read(next_request(engine))
    assert request.block_starts.tolist() == [0, 1, 3, 6]
    assert len(set(request.block_ids.tolist()) - {0}) == 6
    for table, rows in zip(tables_of(request), rows_of(request), strict=True):
        positions = request.positions[rows]
        assert request.slot_mapping[rows].tolist() == (table[positions // 16] * 16 + positions % 16).tolist()


def submitted_by(engine: LLMEngine) -> list[ExecuteModelRequest]:
    """All that it submits from now on, with their blocks."""
    requests: list[ExecuteModelRequest] = []
    tables, submit = BlockTables(), engine.executor.submit

    def keep(request: ExecuteModelRequest) -> Future[SamplerOutput]:
        requests.append(tables.read(request))
        return submit(request)

    engine.executor.submit = keep
    return requests


def test_a_block_is_named_once() -> None:
    engine = make_engine(Knobs())
    requests = submitted_by(engine)
    add_request(engine, "long", [1] * 40, SamplingParams(max_tokens=20, ignore_eos=True))
    while engine.has_unfinished_requests():
        engine.step()
    assert requests[0].table_changes[:, :2].tolist() == [[0, 0], [0, 1], [0, 2]]
    assert [row for request in requests[1:] for row in request.table_changes[:, :2].tolist()] == [[0, 3]]
    assert [len(request.block_ids) for request in requests] == [3] * 9 + [4] * 11


def test_prompt_logprobs_sample_the_rows_before_their_tokens() -> None:
    engine = make_engine(Knobs())
    params = SamplingParams(max_tokens=2, prompt_logprobs=0, logprobs=2)
    add_request(engine, "r", [5, 6, 7], params)
    request = next_request(engine)
    assert request.sampled_rows.tolist() == [0, 1, 2]
    assert request.sampling.has_target.tolist() == [True, True, False]
    assert request.sampling.target_ids.tolist() == [6, 7, 0]
    assert request.sampling.logprob_counts.tolist() == [1, 1, 3]


def test_forks_copy_before_they_write() -> None:
    engine = make_engine(Knobs())
    requests = submitted_by(engine)
    add_request(engine, "beams", [3] * 20, SamplingParams(beam_width=2, temperature=0.0, max_tokens=9))
    engine.step()
    engine.step()
    request = requests[1]
    tables = np.stack(tables_of(request))
    ((source, target),) = request.blocks_to_copy.tolist()
    assert tables[0, 0] == tables[1, 0] and {tables[0, 1], tables[1, 1]} == {source, target}
    assert np.unique(request.slot_mapping).size == len(request.slot_mapping)
