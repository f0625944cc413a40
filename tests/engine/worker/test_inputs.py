"""A step's arrays on the device, and the tokens that the driver did not know."""

import numpy as np
import pytest
import torch

from engine.worker.inputs import Inputs
from engine.worker.step_tensors import block_tables
from engine.worker.worker import Worker
from tests.engine.worker.on_demo import make_config
from tests.engine.worker.steps import Part, make_step, pairs


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest) -> object:
    return Worker(make_config())._shard.model


@pytest.fixture
def inputs(model: object) -> Inputs:
    made = Inputs(model)
    for step in range(5):
        made.keep(step, torch.tensor([10 * step, 10 * step + 1], dtype=torch.int32))
    return made


PARTS = [Part([5, 6, 0], 2, [1]), Part([7, 8, 9], 0, [2])]


def test_carried_rows_are_filled_in_and_the_request_is_not_changed(inputs: Inputs) -> None:
    step = make_step(5, PARTS, carried_step=4, carried_rows=pairs((0, 1)))
    tensors = inputs.step_tensors(step, None)
    assert tensors.input_ids is not None
    assert tensors.input_ids.tolist() == [41, 7, 8, 9]
    assert step.input_ids.tolist() == [0, 7, 8, 9]
    assert (tensors.metadata.max_query_len, tensors.metadata.max_context_len) == (3, 3)
    for name in ("query_starts", "context_lens", "slot_mapping"):
        assert np.array_equal(getattr(tensors.metadata, name).numpy(), getattr(step, name))
    assert tensors.metadata.block_tables.tolist() == [[1], [2]]


def test_tables_are_as_wide_as_the_longest_sequence_and_end_in_null_blocks() -> None:
    step = make_step(0, [Part([1] * 20, 0, [5, 3]), Part([1], 0, [7]), Part([1] * 40, 0, [2, 6, 4])])
    assert block_tables(step).tolist() == [[5, 3, 0], [7, 0, 0], [2, 6, 4]]
    assert block_tables(step, 4).tolist() == [[5, 3, 0], [7, 0, 0], [2, 6, 4], [0, 0, 0]]
    assert block_tables(step).dtype == np.int32
    assert block_tables(make_step(0, [])).shape == (0, 0)


def test_tokens_are_kept_for_four_steps(inputs: Inputs) -> None:
    inputs.step_tensors(make_step(5, PARTS, carried_step=1, carried_rows=pairs((0, 0))), None)
    with pytest.raises(ValueError, match="step 5 carries rows of step 0, whose tokens are not kept"):
        inputs.step_tensors(make_step(5, PARTS, carried_step=0, carried_rows=pairs((0, 0))), None)
