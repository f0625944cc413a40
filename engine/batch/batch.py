"""Flattens a plan: `SchedulerOutputs` -> `ExecuteModelRequest`. A few loops over lists; the rest
is numpy gathers.
"""

from itertools import chain

import numpy as np

from engine.batch.masks import awaits_masks
from engine.batch.sampling_rows import SampledRow, sampling_columns
from engine.ragged import starts_of
from engine.request import Adapter
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.plan import Part, PlainRow, ScheduledSequence, SchedulerOutputs
from engine.scheduling.token_sets.requested import ANY
from engine.step import NO_FILES, NO_IDS, NO_RANGES, NO_RUNS, NOTHING_DRAFTED, ExecuteModelRequest


def build_request(plan: SchedulerOutputs, blocks: BlockManager, epoch: int) -> ExecuteModelRequest:
    """The step's arrays; see `ExecuteModelRequest` for shapes. Also stores in each sequence which
    sampled row is its own, for its next step, which is built before this one's result is known.
    """
    scheduled = plan.scheduled
    num_tokens = np.array([entry.num_tokens for entry in scheduled], np.int32)
    starts = np.array([entry.start for entry in scheduled], np.int32)
    query_starts = starts_of(num_tokens)
    owner = np.repeat(np.arange(len(scheduled), dtype=np.int32), num_tokens)
    positions = np.arange(plan.num_tokens, dtype=np.int32) - query_starts[owner] + starts[owner]
    context_lens = starts + num_tokens
    table_rows = np.array([entry.seq.row for entry in scheduled], np.int32)
    size, tables = blocks.block_size, blocks.rows.tables
    written = tables.take(table_rows.astype(np.int64)[owner] * tables.shape[1] + positions // size)
    input_ids, carried_steps, carried_rows = _input_ids(scheduled)
    sampled_rows, rows_sampled = _sampled_rows(plan, query_starts)
    adapter_runs, adapters = _adapter_runs(scheduled, query_starts)
    drafting, draft_ids = _drafting(plan)
    return ExecuteModelRequest(
        epoch=epoch,
        step=plan.step,
        input_ids=input_ids,
        positions=positions,
        slot_mapping=written * size + positions % size,
        query_starts=query_starts,
        context_lens=context_lens,
        table_rows=table_rows,
        table_changes=blocks.rows.take_changes(),
        sampled_rows=sampled_rows,
        sampling=sampling_columns(rows_sampled),
        carried_steps=carried_steps,
        carried_rows=carried_rows,
        blocks_to_swap_out=_pairs(plan.blocks_to_swap_out),
        blocks_to_swap_in=_pairs(plan.blocks_to_swap_in),
        blocks_to_copy=_pairs(plan.blocks_to_copy),
        awaits_masks=awaits_masks(plan),
        returns_tokens=plan.returns_tokens,
        pooled_ranges=_pooled_ranges(plan, query_starts),
        adapter_runs=adapter_runs,
        adapter_digests=[adapter.digest for adapter in adapters],
        adapter_folders=[adapter.folder for adapter in adapters],
        blocks_to_store=_files(plan.blocks_to_store),
        blocks_to_fetch=_files(plan.blocks_to_fetch),
        fetch_addresses=plan.fetch_addresses,
        awaits_fetches=plan.awaits_fetches,
        awaits_stores=plan.awaits_stores,
        drafting=drafting,
        draft_ids=draft_ids,
        **_set_changes(plan),
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


def _pooled_ranges(plan: SchedulerOutputs, query_starts: np.ndarray) -> np.ndarray:
    if not any([entry.num_pooled for entry in plan.others]):
        return NO_RANGES
    ends = zip(plan.scheduled, query_starts[1:].tolist(), strict=True)
    ranges = [(entry, end) for entry, end in ends if isinstance(entry, ScheduledSequence) and entry.num_pooled]
    return _pairs([(end - entry.num_pooled, end) for entry, end in ranges])


def _adapter_runs(scheduled: list[Part], query_starts: np.ndarray) -> tuple[np.ndarray, list[Adapter]]:
    """Neighbouring sequences with the same adapter are one run."""
    if not any([entry.group.request.adapter for entry in scheduled]):
        return NO_RUNS, []
    adapters: dict[str, Adapter] = {}
    numbers: dict[str, int] = {}
    runs: list[list[int]] = []
    for index, entry in enumerate(scheduled):
        adapter = entry.group.request.adapter
        if adapter is None:
            continue
        adapters.setdefault(adapter.digest, adapter)
        number = numbers.setdefault(adapter.digest, len(numbers))
        first, end = query_starts[index : index + 2].tolist()
        if runs and runs[-1][1:] == [first, number]:
            runs[-1][1] = end
        else:
            runs.append([first, end, number])
    return np.array(runs, np.int32), list(adapters.values())


def _files(transfers: list[tuple[int, bytes]]) -> np.ndarray:
    if not transfers:
        return NO_FILES
    slots = np.array([[slot] for slot, _ in transfers], np.int32)
    contents = np.frombuffer(b"".join(content for _, content in transfers), np.int32).reshape(-1, 4)
    return np.hstack((slots, contents))


def _drafting(plan: SchedulerOutputs) -> tuple[np.ndarray, np.ndarray]:
    """Of the entries that the draft model computes, once their sampled rows are numbered."""
    if not any([entry.draft_range for entry in plan.others]):
        return NOTHING_DRAFTED, NO_IDS
    rows: list[tuple[int, ...]] = []
    ids: list[int] = []
    for index, entry in enumerate(plan.scheduled):
        if isinstance(entry, ScheduledSequence) and entry.draft_range is not None:
            start, end = entry.draft_range
            rows.append((index, start, end - start, entry.seq.sampled_row, entry.num_samples, entry.num_proposals))
            ids += entry.seq.token_ids[start:end]
    return np.array(rows, np.int32), np.array(ids, np.int32)


def _set_changes(plan: SchedulerOutputs) -> dict[str, np.ndarray]:
    if not plan.set_changes:
        return {}
    changes = [(number, ANY if tokens is None else tokens) for number, tokens in plan.set_changes]
    rows = [(number, len(tokens.ids), len(tokens.words), len(tokens.bias_ids)) for number, tokens in changes]
    parts = [(tokens.ids, tokens.words, tokens.bias_ids, tokens.bias_values.view(np.int32)) for _, tokens in changes]
    return {"set_changes": np.array(rows, np.int32), "set_words": np.concatenate(list(chain.from_iterable(parts)))}


def _pairs(pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array(pairs, np.int32).reshape(-1, 2)
