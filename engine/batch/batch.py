"""Flattens a plan: `SchedulerOutputs` -> `ExecuteModelRequest`. A few loops over lists; the rest
is numpy gathers.
"""

from itertools import chain

import numpy as np

from engine.batch.masks import awaits_masks
from engine.batch.rows import step_rows
from engine.request import Adapter
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.plan import Part, ScheduledSequence, SchedulerOutputs
from engine.scheduling.token_sets.requested import ANY
from engine.step import NO_FILES, NO_IDS, NO_RANGES, NO_RUNS, NOTHING_DRAFTED, ExecuteModelRequest


def build_request(plan: SchedulerOutputs, blocks: BlockManager, epoch: int) -> ExecuteModelRequest:
    """The step's arrays; see `ExecuteModelRequest` for shapes. Also stores in each sequence which
    sampled row is its own, for its next step, which is built before this one's result is known.
    """
    rows = step_rows(plan)
    starts, query_starts, table_rows = rows.starts, rows.query_starts, rows.table_rows
    num_tokens = np.diff(query_starts)
    owner = np.repeat(np.arange(len(starts), dtype=np.int32), num_tokens)
    positions = np.arange(plan.num_tokens, dtype=np.int32) - query_starts[owner] + starts[owner]
    size, tables = blocks.block_size, blocks.rows.tables
    written = tables.take(table_rows.astype(np.int64)[owner] * tables.shape[1] + positions // size)
    adapter_runs, adapters = _adapter_runs(plan.scheduled, query_starts)
    drafting, draft_ids = _drafting(plan)
    return ExecuteModelRequest(
        epoch=epoch,
        step=plan.step,
        input_ids=rows.input_ids,
        positions=positions,
        slot_mapping=written * size + positions % size,
        query_starts=query_starts,
        context_lens=starts + num_tokens,
        table_rows=table_rows,
        table_changes=blocks.rows.take_changes(),
        sampled_rows=rows.sampled_rows,
        sampling=rows.sampling,
        carried_steps=rows.carried_steps,
        carried_rows=rows.carried_rows,
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
