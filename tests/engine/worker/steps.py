"""Steps made by hand, for tests of what carries or runs them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.outputs import SamplerOutput
from engine.sampling_columns import SamplingColumns
from engine.step import ExecuteModelRequest

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Part:
    """Rows `start` to the end of `token_ids`, of a sequence in these blocks; the last row is
    sampled `num_samples` times.
    """

    token_ids: list[int]
    start: int
    blocks: list[int]
    num_samples: int = 1


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def pairs(*values: tuple[int, int]) -> np.ndarray:
    return np.array(values, np.int32).reshape(-1, 2)


def make_step(step: int, parts: list[Part], *, epoch: int = 0, **changes: Any) -> ExecuteModelRequest:
    """One step of these parts, greedy; `changes` are fields of the request."""
    lengths = [len(part.token_ids) - part.start for part in parts]
    positions = [position for part in parts for position in range(part.start, len(part.token_ids))]
    slots = [
        part.blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        for part in parts
        for position in range(part.start, len(part.token_ids))
    ]
    ends = np.cumsum(lengths, dtype=np.int32)
    sampled_rows = [end - 1 for end, part in zip(ends, parts, strict=True) for _ in range(part.num_samples)]
    fields: dict[str, Any] = {
        "input_ids": ints(*(token for part in parts for token in part.token_ids[part.start :])),
        "positions": ints(*positions),
        "slot_mapping": ints(*slots),
        "query_starts": np.concatenate((ints(0), ends)),
        "context_lens": ints(*(len(part.token_ids) for part in parts)),
        "block_starts": np.cumsum([0, *(len(part.blocks) for part in parts)], dtype=np.int32),
        "block_ids": ints(*(block for part in parts for block in part.blocks)),
        "sampled_rows": ints(*sampled_rows),
        "sampling": SamplingColumns.of_plain_rows(len(sampled_rows)),
        "carried_steps": np.full(len(changes.get("carried_rows", ())), step - 1, np.int32),
        "carried_rows": pairs(),
        "blocks_to_swap_out": pairs(),
        "blocks_to_swap_in": pairs(),
        "blocks_to_copy": pairs(),
    }
    return ExecuteModelRequest(epoch=epoch, step=step, **(fields | changes))


def decode_step(step: int, num_seqs: int) -> ExecuteModelRequest:
    """One token for each of `num_seqs` sequences of 100 tokens: 0 for the first, 1 for the second,
    ...
    """
    parts = [
        Part([*[0] * 99, index], start=99, blocks=list(range(1 + 7 * index, 8 + 7 * index)))
        for index in range(num_seqs)
    ]
    return make_step(step, parts)


def make_output(request: ExecuteModelRequest, token_ids: np.ndarray) -> SamplerOutput:
    """These tokens as the output of the request's step, without logprobs."""
    return SamplerOutput(
        epoch=request.epoch,
        step=request.step,
        token_ids=token_ids,
        is_finite=np.ones(len(token_ids), np.bool_),
        logprobs=floats(),
        ranks=ints(),
        top_ids=np.empty((0, 0), np.int32),
        top_logprobs=np.empty((0, 0), np.float32),
        execute_ns=np.array([1], np.int64),
    )


def generate(
    execute: Callable[[ExecuteModelRequest], SamplerOutput],
    prompts: list[list[int]],
    num_tokens: int,
    *,
    epoch: int = 0,
    first_step: int = 0,
    chunk: int = 1000,
) -> list[list[int]]:
    """`num_tokens` greedy tokens for each prompt: all prompts together in chunks of `chunk` tokens,
    then decoding.
    """
    blocks_each = -(-(max(len(prompt) for prompt in prompts) + num_tokens) // BLOCK_SIZE)
    blocks = [list(range(1 + index * blocks_each, 1 + (index + 1) * blocks_each)) for index in range(len(prompts))]
    done = [0] * len(prompts)
    sequences = [list(prompt) for prompt in prompts]
    outputs: list[list[int]] = [[] for _ in prompts]
    step = first_step
    while any(len(output) < num_tokens for output in outputs):
        indices = [index for index, output in enumerate(outputs) if len(output) < num_tokens]
        ends = {index: min(done[index] + chunk, len(sequences[index])) for index in indices}
        samples = {index: int(ends[index] == len(sequences[index])) for index in indices}
        parts = [
            Part(sequences[index][: ends[index]], done[index], blocks[index], num_samples=samples[index])
            for index in indices
        ]
        output = execute(make_step(step, parts, epoch=epoch))
        step += 1
        done = [ends.get(index, count) for index, count in enumerate(done)]
        for index, token in zip([index for index in indices if samples[index]], output.token_ids.tolist(), strict=True):
            outputs[index].append(token)
            sequences[index].append(token)
    return outputs
