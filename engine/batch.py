"""A plan flattened: `SchedulerOutputs` -> `ExecuteModelRequest`. A few list walks, the rest is
numpy gathers.
"""

from itertools import chain

import numpy as np

from engine.block_manager import BlockManager
from engine.sampling_params import SamplingParams
from engine.scheduler import ScheduledSequence, SchedulerOutputs
from engine.sequence import Sequence, SequenceGroup
from engine.step import ExecuteModelRequest, SamplingColumns

NO_INTS = np.zeros(0, np.int32)
NO_FLOATS = np.zeros(0, np.float32)


def build_request(plan: SchedulerOutputs, blocks: BlockManager, epoch: int) -> ExecuteModelRequest:
    """The step's arrays; see `ExecuteModelRequest` for shapes.

    Also notes in each sequence which sampled row is its own (`Sequence.sampled_row`), for the step
    built ahead of its result.
    """
    scheduled = plan.scheduled
    num_tokens = np.array([entry.num_tokens for entry in scheduled], np.int32)
    starts = np.array([entry.start for entry in scheduled], np.int32)
    query_starts = np.zeros(len(scheduled) + 1, np.int32)
    np.cumsum(num_tokens, out=query_starts[1:])
    owner = np.repeat(np.arange(len(scheduled), dtype=np.int32), num_tokens)
    positions = np.arange(plan.num_tokens, dtype=np.int32) - query_starts[owner] + starts[owner]
    context_lens = starts + num_tokens
    rows = np.array([entry.seq.row for entry in scheduled], np.intp)
    width = blocks.num_blocks(int(context_lens.max())) if scheduled else 0
    block_tables = blocks.tables[rows, :width] if scheduled else np.zeros((0, 0), np.int32)
    size = blocks.block_size
    slot_mapping = block_tables[owner, positions // size] * size + positions % size
    input_ids, carried = _input_ids(scheduled)
    sampled_rows, row_groups = _sampled_rows(scheduled, query_starts)
    return ExecuteModelRequest(
        epoch=epoch,
        step=plan.step,
        input_ids=input_ids,
        positions=positions,
        slot_mapping=slot_mapping.astype(np.int32, copy=False),
        query_starts=query_starts,
        context_lens=context_lens,
        block_tables=block_tables,
        sampled_rows=sampled_rows,
        sampling=_sampling_columns(row_groups),
        carried_step=plan.step - 1,
        carried_rows=carried,
        blocks_to_swap_out=_pairs(plan.blocks_to_swap_out),
        blocks_to_swap_in=_pairs(plan.blocks_to_swap_in),
        blocks_to_copy=_pairs(plan.blocks_to_copy),
    )


# A sampled row: whose it is, the position it gives a token for, and the prompt token there if it is
# given, not sampled.
SampledRow = tuple[SequenceGroup, Sequence, int, int, int | None]


def _input_ids(scheduled: list[ScheduledSequence]) -> tuple[np.ndarray, np.ndarray]:
    ids: list[int] = []
    carried: list[tuple[int, int]] = []
    for entry in scheduled:
        tokens, start, end = entry.seq.token_ids, entry.start, entry.start + entry.num_tokens
        if end <= len(tokens):
            if entry.num_tokens == 1:
                ids.append(tokens[start])
            else:
                ids += tokens[start:end]
        else:
            assert entry.num_tokens == 1, "a token not known yet is always the last"
            carried.append((len(ids), entry.seq.sampled_row))
            ids.append(0)
    return np.array(ids, np.int32), _pairs(carried)


def _sampled_rows(scheduled: list[ScheduledSequence], query_starts: np.ndarray) -> tuple[np.ndarray, list[SampledRow]]:
    token_rows: list[int] = []
    rows: list[SampledRow] = []
    for entry, end_row in zip(scheduled, query_starts[1:].tolist(), strict=True):
        group, seq = entry.group, entry.seq
        if entry.num_prompt_rows:
            for position in range(entry.prompt_row_start + 1, entry.prompt_row_start + 1 + entry.num_prompt_rows):
                token_rows.append(end_row - entry.num_tokens + position - 1 - entry.start)
                rows.append((group, seq, seq.choice, position, seq.token_ids[position]))
        if entry.num_samples:
            seq.sampled_row = len(rows)
            position = entry.start + entry.num_tokens
            token_rows.append(end_row - 1)
            rows.append((group, seq, seq.choice, position, None))
    return np.array(token_rows, np.int32), rows


# The columns that stay the same for all rows of a request: packed once, joined every step.
PARAMS = np.dtype(
    [
        ("temperature", np.float32),
        ("top_k", np.int32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("seed", np.uint64),
        ("presence_penalty", np.float32),
        ("frequency_penalty", np.float32),
        ("repetition_penalty", np.float32),
        ("logprob_counts", np.int32),
    ]
)


def pack_params(params: SamplingParams, seed: int, num_candidates: int) -> bytes:
    """A request's record of `PARAMS`; `num_candidates` is what beam search needs of each row, or
    0.
    """
    if num_candidates:
        logprob_count = 1 + num_candidates
    elif params.logprobs is not None:
        logprob_count = 1 + params.logprobs
    else:
        logprob_count = 0 if params.best_of is None else 1
    record = (
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        seed,
        params.presence_penalty,
        params.frequency_penalty,
        params.repetition_penalty,
        logprob_count,
    )
    return np.array(record, PARAMS).tobytes()


def _sampling_columns(rows: list[SampledRow]) -> SamplingColumns:
    packed = np.frombuffer(b"".join([row[0].packed_params for row in rows]), PARAMS)
    columns = {name: packed[name].copy() for name in PARAMS.names or ()}
    columns["choice"] = np.array([row[2] for row in rows], np.int32)
    columns["position"] = np.array([row[3] for row in rows], np.int32)
    if any([row[0].wants_rare_columns for row in rows]):
        return SamplingColumns(**_targets(rows, columns), **_history(rows), **_bias(rows), **_allowed(rows))
    return SamplingColumns(
        **columns,
        **NOTHING_RARE,
        has_target=np.zeros(len(rows), np.bool_),
        target_ids=np.zeros(len(rows), np.int32),
    )


def _targets(rows: list[SampledRow], columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Prompt logprobs: rows whose token is given, and how many logprobs these want."""
    targets = [row[4] for row in rows]
    has_target = np.array([target is not None for target in targets], np.bool_)
    for index in np.flatnonzero(has_target):
        columns["logprob_counts"][index] = 1 + (rows[index][0].params.prompt_logprobs or 0)
    return columns | {"has_target": has_target, "target_ids": np.array([target or 0 for target in targets], np.int32)}


NO_HISTORY = {"history_starts": NO_INTS, "history_ids": NO_INTS, "history_num_prompt": NO_INTS}
NO_BIAS = {"bias_starts": NO_INTS, "bias_ids": NO_INTS, "bias_values": NO_FLOATS}
NO_ALLOWED = {"allowed_starts": NO_INTS, "allowed_ids": NO_INTS}
NOTHING_RARE = NO_HISTORY | NO_BIAS | NO_ALLOWED


def _history(rows: list[SampledRow]) -> dict[str, np.ndarray]:
    """The tokens so far of the rows with a penalty."""
    if not any([row[0].has_penalties for row in rows]):
        return NO_HISTORY
    histories = [seq.token_ids if group.has_penalties and target is None else [] for group, seq, _, _, target in rows]
    num_prompt = [
        seq.num_prompt_tokens if history else 0 for (_, seq, *_), history in zip(rows, histories, strict=True)
    ]
    starts, ids = _ragged(histories)
    return {"history_starts": starts, "history_ids": ids, "history_num_prompt": np.array(num_prompt, np.int32)}


def _bias(rows: list[SampledRow]) -> dict[str, np.ndarray]:
    """logit_bias as asked for, and -inf for what may not come now: an end before min_tokens, the
    last of a bad word.
    """
    if not any([row[0].has_bias for row in rows]):
        return NO_BIAS
    biases = [_biases(group, seq, position) if target is None else [] for group, seq, _, position, target in rows]
    starts, ids = _ragged([[token_id for token_id, _ in row] for row in biases])
    values = np.array([value for row in biases for _, value in row], np.float32)
    return {"bias_starts": starts, "bias_ids": ids, "bias_values": values}


def _biases(group: SequenceGroup, seq: Sequence, position: int) -> list[tuple[int, float]]:
    banned: set[int] = set()
    if position - seq.num_prompt_tokens < group.params.min_tokens:
        banned |= group.stop_token_ids
    for word in group.bad_words_ids:
        if seq.output_ids[len(seq.output_ids) - len(word) + 1 :] == word[:-1] and len(seq.output_ids) >= len(word) - 1:
            banned.add(word[-1])
    biases = [(token_id, bias) for token_id, bias in (group.params.logit_bias or {}).items() if token_id not in banned]
    return biases + [(token_id, float("-inf")) for token_id in sorted(banned)]


def _allowed(rows: list[SampledRow]) -> dict[str, np.ndarray]:
    if not any([row[0].params.allowed_token_ids for row in rows]):
        return NO_ALLOWED
    allowed = [group.params.allowed_token_ids or () if target is None else () for group, _, _, _, target in rows]
    starts, ids = _ragged([list(row) for row in allowed])
    return {"allowed_starts": starts, "allowed_ids": ids}


def _ragged(lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    starts = np.zeros(len(lists) + 1, np.int32)
    np.cumsum([len(row) for row in lists], out=starts[1:])
    return starts, np.array(list(chain.from_iterable(lists)), np.int32)


def _pairs(pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array(pairs, np.int32).reshape(-1, 2)
