"""The rows of a step: the tokens that are computed, and of which of them a next one is sampled."""

from typing import NamedTuple

import numpy as np

from engine.batch.sampling_rows import SampledRow, plain_columns, sampling_columns
from engine.ragged import starts_of
from engine.sampling_columns import SamplingColumns
from engine.scheduling.plan import Part, PlainRow, ScheduledSequence, SchedulerOutputs


class Rows(NamedTuple):
    """int32 arrays; of those that `ExecuteModelRequest` has, see there."""

    starts: np.ndarray  # [S] the first position of each part
    query_starts: np.ndarray
    table_rows: np.ndarray
    input_ids: np.ndarray
    carried_steps: np.ndarray
    carried_rows: np.ndarray
    sampled_rows: np.ndarray
    sampling: SamplingColumns


def step_rows(plan: SchedulerOutputs) -> Rows:
    """Also stores in each sequence which sampled row is its own."""
    if plan.others or any([part.group.wants_rare_columns for part in plan.scheduled]):
        return _mixed_rows(plan)
    return _plain_rows(plan)


def _plain_rows(plan: SchedulerOutputs) -> Rows:
    """Of most steps: a token of each part, of which the next one is sampled. As `_mixed_rows`, in
    one pass and half of its time.
    """
    step, num_parts = plan.step, len(plan.scheduled)
    input_ids = [0] * num_parts
    starts, table_rows, choices, params = [], [], [], []
    carried_steps, carried_to, carried_from = [], [], []
    for index, part in enumerate(plan.scheduled):
        seq, start = part.seq, part.start
        starts.append(start)
        table_rows.append(seq.row)
        choices.append(seq.choice)
        params.append(part.group.packed_params)
        if start < len(seq.token_ids):
            input_ids[index] = seq.token_ids[start]
        else:
            carried_steps.append(seq.sampled_step)
            carried_to.append(index)
            carried_from.append(seq.sampled_row)
        seq.sampled_step, seq.sampled_row = step, index
    positions = np.array(starts, np.int32)
    return Rows(
        positions,
        np.arange(num_parts + 1, dtype=np.int32),
        np.array(table_rows, np.int32),
        np.array(input_ids, np.int32),
        np.array(carried_steps, np.int32),
        np.array([carried_to, carried_from], np.int32).T.copy(),
        np.arange(num_parts, dtype=np.int32),
        plain_columns(params, choices, positions + 1),
    )


def _mixed_rows(plan: SchedulerOutputs) -> Rows:
    scheduled = plan.scheduled
    query_starts = starts_of([part.num_tokens for part in scheduled])
    input_ids, carried_steps, carried_rows = _input_ids(scheduled)
    sampled_rows, rows_sampled = _sampled_rows(plan, query_starts)
    return Rows(
        np.array([part.start for part in scheduled], np.int32),
        query_starts,
        np.array([part.seq.row for part in scheduled], np.int32),
        input_ids,
        carried_steps,
        carried_rows,
        sampled_rows,
        sampling_columns(rows_sampled),
    )


def _input_ids(scheduled: list[Part]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ids: list[int] = []
    carried_steps: list[int] = []
    carried_to: list[int] = []
    carried_from: list[int] = []
    for entry in scheduled:
        seq, start = entry.seq, entry.start
        tokens = seq.token_ids
        if isinstance(entry, ScheduledSequence) and (entry.drafts or entry.num_tokens > 1):
            num_known = entry.num_tokens - len(entry.drafts)
            assert start + num_known <= len(tokens), "a token not known yet is always alone"
            ids += tokens[start : start + num_known]
            ids += entry.drafts
        elif start < len(tokens):
            ids.append(tokens[start])
        else:
            carried_steps.append(seq.sampled_step)
            carried_to.append(len(ids))
            carried_from.append(seq.sampled_row)
            ids.append(0)
    rows = np.array([carried_to, carried_from], np.int32).T.copy()
    return np.array(ids, np.int32), np.array(carried_steps, np.int32), rows


def _sampled_rows(plan: SchedulerOutputs, query_starts: np.ndarray) -> tuple[np.ndarray, list[SampledRow]]:
    token_rows: list[int] = []
    rows: list[SampledRow] = []
    step = plan.step
    for entry, end_row in zip(plan.scheduled, query_starts[1:].tolist(), strict=True):
        group, seq = entry.group, entry.seq
        if isinstance(entry, PlainRow):
            seq.sampled_step, seq.sampled_row = step, len(rows)
            token_rows.append(end_row - 1)
            rows.append((group, seq, seq.choice, entry.start + 1, None))
            continue
        if entry.num_prompt_rows:
            for position in range(entry.prompt_row_start + 1, entry.prompt_row_start + 1 + entry.num_prompt_rows):
                token_rows.append(end_row - entry.num_tokens + position - 1 - entry.start)
                rows.append((group, seq, seq.choice, position, seq.token_ids[position]))
        if entry.num_given and group.pooling is not None:
            for token_id in group.pooling.token_ids:
                token_rows.append(end_row - 1)
                rows.append((group, seq, seq.choice, entry.start + entry.num_tokens, token_id))
        if entry.num_samples:
            seq.sampled_step, seq.sampled_row = step, len(rows)
            position = entry.start + entry.num_tokens
            given = None if seq.thinking is None else seq.thinking.forced_token
            if entry.drafts:
                backs = range(len(entry.drafts), 0, -1)
                token_rows += [end_row - 1 - back for back in backs]
                rows += [(group, seq, seq.choice, position - back, given) for back in backs]
            token_rows.append(end_row - 1)
            rows.append((group, seq, seq.choice, position, given))
    return np.array(token_rows, np.int32), rows
