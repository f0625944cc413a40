"""A step is arrays of the types and shapes that it says, also if it only moves blocks."""

from dataclasses import fields

import numpy as np

from engine.batch.batch import build_request
from engine.sampling_params import SamplingParams
from engine.scheduling.plan import SchedulerOutputs
from engine.step import ExecuteModelRequest
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, make_engine


def arrays(request: ExecuteModelRequest) -> dict[str, np.ndarray]:
    values = {field.name: getattr(request, field.name) for field in fields(request)}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def test_every_array_is_of_32_bit_integers() -> None:
    engine = make_engine(Knobs())
    add_request(engine, "r", [1] * 20, SamplingParams())
    request = build_request(engine.scheduler.schedule(), engine.scheduler.blocks, 0)
    assert {array.dtype for array in arrays(request).values()} == {np.dtype(np.int32)}


def test_a_step_that_only_moves_blocks_has_no_rows() -> None:
    plan = SchedulerOutputs(3, max_tokens=8, blocks_to_swap_out=[(1, 0), (2, 1)])
    request = build_request(plan, make_engine(Knobs()).scheduler.blocks, 0)
    assert {name: array.shape for name, array in arrays(request).items()} == {
        **dict.fromkeys(
            ("input_ids", "positions", "slot_mapping", "context_lens", "sampled_rows", "carried_steps"), (0,)
        ),
        **dict.fromkeys(("carried_rows", "blocks_to_swap_in", "blocks_to_copy", "pooled_ranges"), (0, 2)),
        "adapter_runs": (0, 3),
        **dict.fromkeys(("blocks_to_store", "blocks_to_fetch"), (0, 5)),
        "query_starts": (1,),
        "table_changes": (0, 3),
        "set_changes": (0, 4),
        **dict.fromkeys(("table_rows", "block_starts", "block_ids", "set_words"), (0,)),
        "drafting": (0, 6),
        "draft_ids": (0,),
        "blocks_to_swap_out": (2, 2),
    }
