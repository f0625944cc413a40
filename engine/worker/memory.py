"""How much of a GPU is left for the cache, by running the largest step there can be; and what to do when memory runs out."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from engine.errors import InvalidConfig
from engine.request import ExecuteModelRequest, SamplingColumns
from engine.worker.kv_cache import BLOCK_SIZE
from engine.worker.model_runner import ModelRunner


def gpu_cache_bytes(runner: ModelRunner, request: ExecuteModelRequest, device: torch.device, utilization: float) -> int:
    """Bytes of `utilization` of the GPU's memory that weights, the step's activations and other processes leave."""
    torch.cuda.reset_peak_memory_stats(device)
    advice = "lower max_num_batched_tokens or max_num_seqs, or raise tensor_parallel_size"
    with torch.inference_mode(), out_of_memory_advice("the largest step was tried", advice):
        runner.run(request)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    return int(total * utilization - peak - others)


def profiling_request(num_tokens: int, max_num_seqs: int, max_model_len: int) -> ExecuteModelRequest:
    """A step of `num_tokens` rows in sequences as long as they may be, `max_num_seqs` of them sampled; all in block 1."""
    lengths = [min(max_model_len, num_tokens - start) for start in range(0, num_tokens, max_model_len)]
    context_lens = np.array(lengths, np.int32)
    query_starts = np.concatenate(([0], np.cumsum(context_lens))).astype(np.int32)
    positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
    no_pairs = np.empty((0, 2), np.int32)
    num_sampled = min(num_tokens, max_num_seqs)
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
    ones, zeros = np.ones(num_rows, np.float32), np.zeros(num_rows, np.int32)
    no_ids, no_values = np.empty(0, np.int32), np.empty(0, np.float32)
    return SamplingColumns(
        temperature=ones,
        top_k=zeros,
        top_p=0.9 * ones,
        min_p=0 * ones,
        seed=np.zeros(num_rows, np.uint64),
        choice=zeros,
        position=zeros,
        presence_penalty=0 * ones,
        frequency_penalty=0 * ones,
        repetition_penalty=ones,
        logprob_counts=zeros + 1,
        has_target=np.zeros(num_rows, np.bool_),
        target_ids=zeros,
        history_starts=no_ids,
        history_ids=no_ids,
        history_num_prompt=no_ids,
        bias_starts=no_ids,
        bias_ids=no_ids,
        bias_values=no_values,
        allowed_starts=no_ids,
        allowed_ids=no_ids,
    )


@contextmanager
def out_of_memory_advice(when: str, advice: str) -> Iterator[None]:
    """Turn the device's running out of memory into an InvalidConfig that says what to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise InvalidConfig(f"out of GPU memory while {when}: {advice} ({str(error).splitlines()[0]})") from None
