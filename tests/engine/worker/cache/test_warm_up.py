"""What is run before the first request, so that it waits for no compiler; and what is said where
there is no room.
"""

import pytest
import torch

from engine.step import ExecuteModelRequest
from engine.worker.cache.warm_up import SEQUENCES, warm_up
from engine.worker.head.sampler import draws_of

pytest.importorskip("triton")
import triton

from ops.kernels.attention.items import LEAST_SEQUENCES
from ops.kernels.matmul.tiles import linear_options, plain_options

# Outputs, leaves and whether they are gated, of weights with 0.5, 7, 14 and 32 billion others.
WEIGHTS = [
    *((1152, 1, False), (896, 2, False), (896, 4, False), (4864, 1, True), (151936, 1, False)),
    *((4608, 1, False), (3584, 4, False), (18944, 1, True), (152064, 1, False)),
    *((7168, 1, False), (5120, 8, False), (13824, 1, True), (27648, 1, True)),
]


class Recorder:
    """As a `ModelRunner`: keeps what it is asked to run, and is its own pending step."""

    def __init__(self) -> None:
        self.requests: list[ExecuteModelRequest] = []

    def launch(self, request: ExecuteModelRequest) -> "Recorder":
        self.requests.append(request)
        return self

    def result(self) -> None:
        return


def tiles(num_rows: set[int]) -> set[str]:
    """Of an H200 and of GPUs before it."""
    of_others = {str(linear_options(torch.bfloat16, "plain", rows, False)) for rows in num_rows}
    return of_others | {f"{weight} {plain_options(rows, *weight, 132)}" for rows in num_rows for weight in WEIGHTS}


def sequences(num_sequences: set[int]) -> set[int]:
    """For which attention is compiled."""
    return {max(LEAST_SEQUENCES, triton.next_power_of_2(number)) for number in num_sequences}


@pytest.mark.parametrize(("max_num_seqs", "max_num_batched_tokens"), [(1, 64), (129, 129), (1000, 2048), (1024, 1024)])
def test_every_number_of_sequences_is_tried_beside_a_prompt(max_num_seqs: int, max_num_batched_tokens: int) -> None:
    runner = Recorder()
    sizes = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
    warm_up(runner, **sizes, max_model_len=4096, vocab_size=250)
    beside_prompts = {
        len(each.context_lens) for each in runner.requests if len(each.input_ids) > len(each.context_lens)
    }
    assert max(len(each.input_ids) for each in runner.requests) <= max_num_batched_tokens
    possible = set(range(1, min(max_num_seqs, max_num_batched_tokens - 1) + 1))
    assert sequences(beside_prompts) == sequences(possible)
    assert SEQUENCES == LEAST_SEQUENCES


@pytest.mark.parametrize("max_num_seqs", [1, 40, 256])
def test_every_tile_is_tried_in_prefill_and_those_of_decode_steps_in_decode(max_num_seqs: int) -> None:
    runner = Recorder()
    warm_up(runner, max_num_seqs=max_num_seqs, max_num_batched_tokens=2048, max_model_len=4096, vocab_size=250)
    ran: dict[bool, set[int]] = {True: set(), False: set()}
    for request in runner.requests:
        is_decode = len(request.input_ids) == len(request.context_lens)
        ran[is_decode].add(len(request.input_ids))
        assert request.context_lens.max() <= 1024
    assert max(ran[True]) == max_num_seqs
    assert tiles(ran[True]) == tiles(set(range(1, max_num_seqs + 1)))
    assert tiles(ran[True] | ran[False]) == tiles(set(range(1, 2049)))


def test_every_kind_of_draw_is_tried() -> None:
    runner = Recorder()
    warm_up(runner, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, vocab_size=250)
    assert {draws_of(request.sampling) for request in runner.requests} == {"greedy", "unfiltered", "any"}
