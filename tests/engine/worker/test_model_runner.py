"""The contract of a step."""

import numpy as np
import pytest

from engine.sampling_columns import SamplingColumns
from engine.worker.inputs import MAX_LOGITS_ROWS
from engine.worker.worker import Worker
from tests.engine.worker.on_demo import PROMPTS, execute
from tests.engine.worker.steps import Part, generate, ints, make_step, pairs


def test_step_without_sampled_rows_and_step_without_rows(worker: Worker) -> None:
    prefill = execute(worker, make_step(0, [Part(PROMPTS[0], 0, [1, 2, 3], num_samples=0)]))
    moves = execute(worker, make_step(1, [], blocks_to_copy=pairs((1, 4), (2, 5), (3, 6))))
    assert prefill.token_ids.shape == moves.token_ids.shape == (0,)
    last = Part([*PROMPTS[0], 9], len(PROMPTS[0]), [1, 2, 3])
    copied = Part(last.token_ids, last.start, [4, 5, 6])
    first, second = execute(worker, make_step(2, [last, copied])).token_ids.tolist()
    assert first == second


def test_moves_come_before_the_step_reads_its_blocks(worker: Worker) -> None:
    """A prompt is computed, swapped out, overwritten, and back in other blocks within the step that
    goes on with it.
    """
    tokens = generate(lambda request: execute(worker, request), PROMPTS[:1], 2)[0]
    execute(worker, make_step(0, [Part(PROMPTS[0], 0, [1, 2, 3])]))
    swap_out = pairs((1, 20), (2, 21), (3, 22))
    execute(worker, make_step(1, [Part([7] * 40, 0, [1, 2, 3])], blocks_to_swap_out=swap_out))
    part = Part([*PROMPTS[0], tokens[0]], len(PROMPTS[0]), [9, 8, 7])
    swap_in = pairs((20, 9), (21, 8), (22, 7))
    assert execute(worker, make_step(2, [part], blocks_to_swap_in=swap_in)).token_ids.tolist() == [tokens[1]]


def test_carried_rows_are_the_tokens_of_the_step_before(worker: Worker) -> None:
    prompts = PROMPTS[:2]
    blocks = [[1, 2, 3], [4]]
    prefill = [Part(prompt, 0, table) for prompt, table in zip(prompts, blocks, strict=True)]
    tokens = execute(worker, make_step(0, prefill)).token_ids.tolist()
    decode = [
        Part([*prompt, token], len(prompt), table) for prompt, token, table in zip(prompts, tokens, blocks, strict=True)
    ]
    told = execute(worker, make_step(1, decode)).token_ids.tolist()
    execute(worker, make_step(2, prefill))
    swapped = make_step(3, decode[::-1], input_ids=ints(0, 0), carried_rows=pairs((0, 1), (1, 0)))
    assert execute(worker, swapped).token_ids.tolist() == told[::-1]
    assert swapped.input_ids.tolist() == [0, 0], "the request is not the worker's to change"


def test_carried_rows_of_a_step_long_past(worker: Worker) -> None:
    request = make_step(9, [Part([1], 0, [1])], carried_steps=ints(3), carried_rows=pairs((0, 0)))
    with pytest.raises(ValueError, match="step 9 carries rows of step 3"):
        worker.execute(request)


def test_more_sampled_rows_than_are_taken_at_once(worker: Worker) -> None:
    num_rows = MAX_LOGITS_ROWS + 40
    prompt = [3 + index % 200 for index in range(num_rows)]
    part = Part(prompt, 0, list(range(1, 20)))
    targets = SamplingColumns.of_plain_rows(
        num_rows,
        has_target=np.ones(num_rows, np.bool_),
        target_ids=np.array([*prompt[1:], 0], np.int32),
        logprob_counts=np.full(num_rows, 3, np.int32),
    )
    rows = np.arange(num_rows, dtype=np.int32)
    output = execute(worker, make_step(0, [part], sampled_rows=rows, sampling=targets))
    assert output.token_ids.tolist() == [*prompt[1:], 0]
    assert output.top_ids.shape == (num_rows, 2)
    assert (np.diff(output.top_logprobs, axis=1) <= 0).all()
    best = execute(worker, make_step(1, [part], sampled_rows=rows[-45:], sampling=SamplingColumns.of_plain_rows(45)))
    assert best.token_ids.tolist() == output.top_ids[-45:, 0].tolist()


def test_swapping_is_timed(loaded: Worker) -> None:
    assert loaded.initialize_cache(32, 32) > 0
