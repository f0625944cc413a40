"""Steps that are run to compile kernels and to measure their memory, in block 1; they belong to no
request.
"""

from dataclasses import replace

import numpy as np

from engine.ragged import starts_of
from engine.sampling_columns import SamplingColumns
from engine.step import ExecuteModelRequest
from engine.worker.cache.kv_cache import BLOCK_SIZE
from ops.interface import Draws


def prefill_request(num_tokens: int, max_num_seqs: int, max_model_len: int) -> ExecuteModelRequest:
    """A step of `num_tokens` rows in sequences as long as they may be, `max_num_seqs` of them
    sampled; all in block 1.
    """
    lengths = [min(max_model_len, num_tokens - start) for start in range(0, num_tokens, max_model_len)]
    return _profiling_request(lengths, lengths, min(num_tokens, max_num_seqs))


def decode_request(max_num_seqs: int, max_model_len: int, draws: Draws = "any") -> ExecuteModelRequest:
    """A step of a token for each of `max_num_seqs` sequences that are as long as they may be; all
    in block 1.
    """
    return _profiling_request([1] * max_num_seqs, [max_model_len] * max_num_seqs, max_num_seqs, draws)


def mixed_request(num_tokens: int, num_seqs: int, max_model_len: int) -> ExecuteModelRequest:
    """A step of `num_tokens` rows, as evenly as may be of so many sequences, which are as long as
    they may be; all in block 1.
    """
    each, more = divmod(num_tokens, num_seqs)
    query_lens = [min(max_model_len, each + (index < more)) for index in range(num_seqs)]
    return _profiling_request(query_lens, [max_model_len] * num_seqs, num_seqs)


def demanding_request(max_model_len: int, vocab_size: int) -> ExecuteModelRequest:
    """A step of a sequence as long as it may be, in block 1, over which the null block is copied.
    Its row is sampled twice: by all that a row can ask for, and with its token given. It is pooled,
    too.
    """
    plain = decode_request(1, max_model_len)
    columns = SamplingColumns.of_plain_rows(
        2,
        temperature=_floats(1, 1),
        top_k=_ints(1, 0),
        top_p=_floats(0.9, 1),
        min_p=_floats(0.1, 0),
        position=_ints(max_model_len, max_model_len),
        logprob_counts=_ints(2, 2),
        has_target=np.array([False, True]),
        target_ids=_ints(0, 0),
        history_num_prompt=_ints(1, 0),
        presence_penalty=_floats(1, 0),
        frequency_penalty=_floats(1, 0),
        repetition_penalty=_floats(2, 1),
        mask_words=_words(vocab_size),
        mask_starts=_of_the_first(_words(vocab_size)),
        allowed_mask_words=_words(vocab_size),
        allowed_mask_starts=_of_the_first(_words(vocab_size)),
        allowed_ids=_ints(0),
        allowed_starts=_of_the_first(_ints(0)),
        bias_ids=_ints(0),
        bias_values=_floats(1),
        bias_starts=_of_the_first(_ints(0)),
        ban_last_ids=_ints(1),
        ban_ids=_ints(1),
        ban_starts=_of_the_first(_ints(1)),
    )
    return replace(
        plain,
        sampled_rows=_ints(0, 0),
        sampling=columns,
        blocks_to_copy=_ints(0, 1).reshape(1, 2),
        pooled_ranges=_ints(0, 1).reshape(1, 2),
    )


def _profiling_request(
    query_lens: list[int], lengths: list[int], num_sampled: int, draws: Draws = "any"
) -> ExecuteModelRequest:
    context_lens = np.array(lengths, np.int32)
    query_starts = starts_of(query_lens)
    positions = np.concatenate(
        [np.arange(end - count, end, dtype=np.int32) for count, end in zip(query_lens, lengths, strict=True)]
    )
    num_tokens = len(positions)
    block_starts = starts_of(-(-context_lens // BLOCK_SIZE))
    no_pairs = np.empty((0, 2), np.int32)
    return ExecuteModelRequest(
        epoch=0,
        step=0,
        input_ids=np.zeros(num_tokens, np.int32),
        positions=positions,
        slot_mapping=BLOCK_SIZE + positions % BLOCK_SIZE,
        query_starts=query_starts,
        context_lens=context_lens,
        block_starts=block_starts,
        block_ids=np.ones(block_starts[-1], np.int32),
        sampled_rows=np.arange(num_sampled, dtype=np.int32),
        sampling=_columns(num_sampled, draws),
        carried_steps=np.empty(0, np.int32),
        carried_rows=no_pairs,
        blocks_to_swap_out=no_pairs,
        blocks_to_swap_in=no_pairs,
        blocks_to_copy=no_pairs,
        drafting=_drafted(positions[query_starts[:-1]], query_lens),
        draft_ids=np.zeros(num_tokens, np.int32),
    )


def _drafted(starts: np.ndarray, query_lens: list[int]) -> np.ndarray:
    """A draft model, if there is one, computes the same rows, and guesses nothing."""
    nothing = np.zeros(len(starts), np.int32)
    return np.stack([np.arange(len(starts), dtype=np.int32), starts, np.array(query_lens, np.int32)] + 3 * [nothing], 1)


def _columns(num_rows: int, draws: Draws) -> SamplingColumns:
    """Every row with logprobs; by top-p and with a penalty if `draws` is "any"."""
    ones = np.ones(num_rows, np.float32)
    penalties = {"position": ones.astype(np.int32), "history_num_prompt": ones.astype(np.int32)}
    temperature = 0 * ones if draws == "greedy" else ones
    top_p = 0.9 * ones if draws == "any" else ones
    return SamplingColumns.of_plain_rows(
        num_rows,
        temperature=temperature,
        top_p=top_p,
        logprob_counts=ones.astype(np.int32),
        **(penalties if draws == "any" else {}),
    )


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def _floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def _words(vocab_size: int) -> np.ndarray:
    """A mask that lets every token through."""
    return np.full(-(-vocab_size // 32), -1, np.int32)


def _of_the_first(values: np.ndarray) -> np.ndarray:
    """Where the values of each of two rows start: the first one has all."""
    return _ints(0, len(values), len(values))
