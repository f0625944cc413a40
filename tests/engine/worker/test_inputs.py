"""A step's arrays on the device, and the tokens that the driver did not know."""

import numpy as np
import pytest
import torch

from engine.worker import step_tensors
from engine.worker.device.transfer import upload
from engine.worker.inputs import Inputs
from engine.worker.step_tensors import table_arrays, write_tables
from engine.worker.worker import Worker
from tests.engine.worker.on_demo import make_config
from tests.engine.worker.steps import Part, ints, make_step, pairs


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest) -> object:
    return Worker(make_config())._shard.model


@pytest.fixture
def inputs(model: object) -> Inputs:
    made = Inputs(model, None)
    for step in range(5):
        made.drawn.keep(step, torch.tensor([10 * step, 10 * step + 1], dtype=torch.int32))
    return made


PARTS = [Part([5, 6, 0], 2, [1]), Part([7, 8, 9], 0, [2])]


def test_carried_rows_are_filled_in_and_the_request_is_not_changed(inputs: Inputs) -> None:
    step = make_step(5, PARTS, carried_steps=ints(4), carried_rows=pairs((0, 1)))
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
    assert table_arrays(step, 3)["tables"].tolist() == [[5, 3, 0], [7, 0, 0], [2, 6, 4]]
    assert table_arrays(step, 3, 4)["tables"].tolist() == [[5, 3, 0], [7, 0, 0], [2, 6, 4], [0, 0, 0]]
    assert table_arrays(step, 3)["tables"].dtype == np.int32
    assert table_arrays(make_step(0, []), 3)["tables"].shape == (0, 0)


LENGTHS = [40, 7 * 16, 1, 16_000]  # 1,000 blocks, beside a few


@pytest.mark.parametrize("others", [{}, {"num_rows": 8}, {"num_rows": 5, "least_width": 3}])
@pytest.mark.parametrize("is_small", [True, False])
def test_blocks_come_to_the_same_places_padded_or_not(
    others: dict[str, int], is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_tensors, "_SMALL", 1 << 16 if is_small else 0)
    blocks = iter(range(1, 2000))
    tables = [[next(blocks) for _ in range(-(-length // 16))] for length in LENGTHS]
    step = make_step(0, [Part([1], length - 1, table) for length, table in zip(LENGTHS, tables, strict=True)])
    written = torch.full((8, 1010), -1, dtype=torch.int32)
    arrays = table_arrays(step, 1010, **others)
    assert (sum(array.size for array in arrays.values()) < 4 * 1000) == (not is_small), "padding is not brought"
    write_tables(upload(arrays, written.device), written)
    for row, table in zip(written.tolist(), tables, strict=False):
        assert row[: len(table)] == table
    num_rows = others.get("num_rows", len(LENGTHS))
    for row in range(len(LENGTHS), num_rows):
        assert not written[row, : max(others.get("least_width", 1), 1)].any()
    assert (written[num_rows:] == -1).all()


def test_a_long_context_beside_short_ones_is_computed_as_well(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    step = make_step(5, [Part([5], 600, list(range(1, 39))), Part([7], 3, [40]), Part([8], 17, [41, 42])])
    padded = inputs.step_tensors(step, None).metadata.block_tables
    monkeypatch.setattr(step_tensors, "_SMALL", 0)
    assert torch.equal(inputs.step_tensors(step, None).metadata.block_tables, padded)


def test_tokens_are_kept_for_four_steps(inputs: Inputs) -> None:
    inputs.step_tensors(make_step(5, PARTS, carried_steps=ints(1), carried_rows=pairs((0, 0))), None)
    with pytest.raises(ValueError, match="step 5 carries rows of step 0, whose tokens are not kept"):
        inputs.step_tensors(make_step(5, PARTS, carried_steps=ints(0), carried_rows=pairs((0, 0))), None)
