"""A row's tokens so far are found in its blocks, wherever these have been."""

from typing import Any

import pytest
import torch

from engine.sampling_columns import SamplingColumns
from engine.step import ExecuteModelRequest
from engine.worker.cache.token_history import TokenHistory, history_room
from engine.worker.inputs import Inputs
from engine.worker.worker import Worker
from parallel.decoder import Decoder
from tests.engine.worker.on_demo import make_config
from tests.engine.worker.steps import Part, ints, make_step, pairs

NUM_BLOCKS = 8


@pytest.fixture(scope="module")
def model() -> Decoder:
    return Worker(make_config())._shard.model


@pytest.fixture
def inputs(model: Decoder) -> Inputs:
    return Inputs(model, None)


@pytest.fixture
def history(inputs: Inputs) -> TokenHistory:
    return TokenHistory(torch.zeros(NUM_BLOCKS, 16, dtype=torch.int32), inputs)


def penalized(step: int, parts: list[Part], num_prompt: list[int], **changes: Any) -> ExecuteModelRequest:
    """A row for each number of a prompt's tokens; 0: without a penalty."""
    rows = [part for part in parts for _ in range(part.num_samples)]
    columns = SamplingColumns.of_plain_rows(
        len(rows), position=ints(*(len(part.token_ids) for part in rows)), history_num_prompt=ints(*num_prompt)
    )
    return make_step(step, parts, sampling=columns, **changes)


def told(history: TokenHistory, request: ExecuteModelRequest, start: int, stop: int) -> list[list[int]]:
    ids, starts, lengths = history.of_rows(request, start, stop)
    return [ids[first : first + length].tolist() for first, length in zip(starts, lengths, strict=True)]


def test_tokens_come_from_all_blocks_of_a_sequence_and_from_no_other(history: TokenHistory) -> None:
    long, short = list(range(100, 140)), [7, 8, 9]
    history.write(make_step(0, [Part(long[:30], 0, [5, 2])]))
    request = penalized(1, [Part(short, 0, [3]), Part(long, 30, [5, 2, 6], num_samples=2)], [1, 40, 40])
    history.write(request)
    assert told(history, request, 0, 3) == [short, long, long]
    assert told(history, request, 2, 3) == [long]


@pytest.mark.parametrize("num_prompt", [[1, 30], [1, 0]])
def test_of_a_row_for_each_sequence(history: TokenHistory, num_prompt: list[int]) -> None:
    long, short = list(range(100, 133)), [7, 8, 9]
    history.write(make_step(0, [Part(short[:2], 0, [3]), Part(long[:32], 0, [5, 2])]))
    request = penalized(1, [Part(short, 2, [3]), Part(long, 32, [5, 2, 6])], num_prompt)
    history.write(request)
    assert told(history, request, 0, 2) == [short, long if num_prompt[1] else []]


def test_blocks_that_a_draft_model_writes_guesses_to_take_no_room(history: TokenHistory) -> None:
    """A sampling graph takes rows by `history_room`, of which it may have no more."""
    long, short = list(range(100, 132)), list(range(16))
    drafting = ints(0, 15, 1, 0, 1, 4).reshape(1, 6)
    parts = [Part(short, 15, [3, 4]), Part(long, 31, [5, 2])]
    history.write(make_step(0, [Part(short[:15], 0, [3]), Part(long[:31], 0, [5, 2])]))
    request = penalized(1, parts, [1, 30], drafting=drafting)
    history.write(request)
    assert told(history, request, 0, 2) == [short, long]
    assert len(history.of_rows(request, 0, 2).ids) == history_room(request.sampling) == 48


def test_rows_without_a_penalty_have_none(history: TokenHistory) -> None:
    request = penalized(0, [Part([1] * 20, 0, [1, 2]), Part([4, 5], 0, [3]), Part([6], 0, [4])], [0, 2, 0])
    history.write(request)
    assert told(history, request, 0, 3) == [[], [4, 5], []]


def test_a_token_that_the_driver_does_not_know_yet_is_there(history: TokenHistory, inputs: Inputs) -> None:
    history.write(make_step(0, [Part([4, 5], 0, [3])]))
    inputs.drawn.keep(0, torch.tensor([77, 66], dtype=torch.int32))
    request = penalized(1, [Part([4, 5, 0], 2, [3])], [2], carried_rows=pairs((0, 1)))
    history.write(request)
    assert told(history, request, 0, 1) == [[4, 5, 66]]
    assert request.input_ids.tolist() == [0], "the request's own memory is not written to"
