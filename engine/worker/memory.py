"""How much of a GPU is left for the cache, by running the largest step there can be; and what to do
when memory runs out.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from engine.errors import InvalidConfig
from engine.sampling_columns import SamplingColumns
from engine.step import ExecuteModelRequest
from engine.worker.decode_graphs import BYTES_PER_GRAPH
from engine.worker.kv_cache import BLOCK_SIZE
from engine.worker.model_runner import ModelRunner


def gpu_cache_bytes(
    runner: ModelRunner,
    prefill: ExecuteModelRequest,
    decode: ExecuteModelRequest,
    device: torch.device,
    utilization: float,
    num_graphs: int,
) -> int:
    """Bytes of `utilization` of the GPU's memory that weights, the largest steps' activations and
    other processes leave.

    Graphs keep what they compute in to themselves: as much as the largest decode step takes, and
    BYTES_PER_GRAPH each.
    """
    before = torch.cuda.memory_allocated(device)
    with torch.inference_mode():
        activations = [_activation_bytes(runner, request, device) for request in (prefill, decode)]
    activation_bytes = max(activations)
    if num_graphs:
        activation_bytes += activations[1] + num_graphs * BYTES_PER_GRAPH
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    return int(total * utilization - before - activation_bytes - others)


def _activation_bytes(runner: ModelRunner, request: ExecuteModelRequest, device: torch.device) -> int:
    """What the step has allocated at its peak."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    advice = "lower max_num_batched_tokens or max_num_seqs, or raise tensor_parallel_size"
    with out_of_memory_advice("the largest step was tried", advice):
        runner.launch(request).result()
    return int(torch.cuda.max_memory_allocated(device) - before)


def prefill_request(num_tokens: int, max_num_seqs: int, max_model_len: int) -> ExecuteModelRequest:
    """A step of `num_tokens` rows in sequences as long as they may be, `max_num_seqs` of them
    sampled; all in block 1.
    """
    lengths = [min(max_model_len, num_tokens - start) for start in range(0, num_tokens, max_model_len)]
    return _profiling_request(lengths, lengths, min(num_tokens, max_num_seqs))


def decode_request(max_num_seqs: int, max_model_len: int) -> ExecuteModelRequest:
    """A step of a token for each of `max_num_seqs` sequences that are as long as they may be; all
    in block 1.
    """
    return _profiling_request([1] * max_num_seqs, [max_model_len] * max_num_seqs, max_num_seqs)


def _profiling_request(query_lens: list[int], lengths: list[int], num_sampled: int) -> ExecuteModelRequest:
    context_lens = np.array(lengths, np.int32)
    query_starts = np.concatenate(([0], np.cumsum(query_lens))).astype(np.int32)
    positions = np.concatenate(
        [np.arange(end - count, end, dtype=np.int32) for count, end in zip(query_lens, lengths, strict=True)]
    )
    num_tokens = len(positions)
    no_pairs = np.empty((0, 2), np.int32)
    return ExecuteModelRequest(
        epoch=0,
        step=0,
        input_ids=np.zeros(num_tokens, np.int32),
        positions=positions,
        slot_mapping=BLOCK_SIZE + positions % BLOCK_SIZE,
        query_starts=query_starts,
        context_lens=context_lens,
        block_tables=np.ones((len(lengths), -(-max(lengths) // BLOCK_SIZE)), np.int32),
        sampled_rows=np.arange(num_sampled, dtype=np.int32),
        sampling=_hard_columns(num_sampled),
        carried_step=0,
        carried_rows=no_pairs,
        blocks_to_swap_out=no_pairs,
        blocks_to_swap_in=no_pairs,
        blocks_to_copy=no_pairs,
    )


def _hard_columns(num_rows: int) -> SamplingColumns:
    """Every row drawn by top-p, with logprobs."""
    ones = np.ones(num_rows, np.float32)
    return SamplingColumns.of_plain_rows(
        num_rows, temperature=ones, top_p=0.9 * ones, logprob_counts=ones.astype(np.int32)
    )


def no_room_advice(missing: int, total: int, utilization: float) -> str:
    """What makes room for so many bytes more, of a GPU's total: gpu_memory_utilization, as far as
    that goes, else less.
    """
    enough = math.ceil(100 * (utilization + missing / total)) / 100
    if enough <= 1:
        return f"gpu_memory_utilization={enough:g} would do"
    return (
        "raise tensor_parallel_size or pipeline_parallel_size, set quantization to int8 or int4, or lower "
        f"max_num_batched_tokens: {missing} bytes are missing of the {total} of this GPU"
    )


@contextmanager
def out_of_memory_advice(when: str, advice: str) -> Iterator[None]:
    """Turn the device's running out of memory into an InvalidConfig that says what to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise InvalidConfig(f"out of GPU memory while {when}: {advice} ({str(error).splitlines()[0]})") from None
