"""A test of the tests: bugs planted one at a time must show in the random walks."""

import random
from collections import deque
from dataclasses import replace

import numpy as np
import pytest

import engine.admission.admission
import engine.batch.batch
import engine.batch.masks
import engine.batch.sampling_rows
import engine.core.llm_engine
import engine.output.decoding
import engine.scheduling.queues
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.block_pool import BlockPool
from engine.scheduling.budget.token_budget import TokenBudget
from engine.scheduling.drafts.drafter import Drafter
from engine.scheduling.drafts.drafting import Drafting
from engine.scheduling.queues import Queues
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence
from engine.scheduling.thinking import Thinking
from engine.scheduling.tiers.host_tier import HostTier
from engine.scheduling.tiers.prefix_index import PrefixIndex
from engine.scheduling.tiers.shelf import STEPS_BEFORE_STORE, Shelf
from engine.scheduling.waiting.waiting_queue import WaitingQueue
from tests.engine.support.workloads import (
    essence,
    foreknowing,
    make_engine,
    random_knobs,
    random_requests,
    run,
    was_refused,
)
from tests.engine.walks.test_random_walks import undisturbed

NUM_WORKLOADS = 64
WORDS = 2  # of a mask


def fork_without_references(self, parent, child):
    if parent.row is not None:
        self.rows.enter(child)
    for block in parent.block_table:
        self.rows.append(child, block)


def never_copy_on_write(self, seq):
    return False


def hash_one_block_alone(self, seq, index, salt):
    start = index * self.block_size
    return repr(seq.token_ids[start : start + self.block_size]).encode()


def take_all_tokens_as_cached(self, seq, salt):
    cached = []
    for index in range(len(seq.token_ids) // self.block_size):
        block = self._device.lookup(self.hash_of(seq, index, salt))
        if block is None:
            break
        cached.append(block)
    return cached


def swap_in_one_block_late(self, seqs, salt, original=BlockManager.swap_in):
    original(self, seqs, salt)
    self._swap_in = self._swap_in[:-1]


def swap_out_one_block_late(self, seqs, original=BlockManager.swap_out):
    original(self, seqs)
    self._swap_out = self._swap_out[1:]


def load_one_block_late(self, seq, salt, lora_name=None, original=BlockManager.load):
    original(self, seq, salt)
    self._swap_in = self._swap_in[:-1]


def preempt_with_blocks_to_be_loaded(self, seq):
    while seq.host_block_table:
        self.host.release(seq.host_block_table.pop())
    seq.num_computed_tokens = len(seq.block_table) * self.block_size


def give_host_blocks_away_that_are_read(self, *, is_step=False, original=BlockManager.take_moves):
    while self._read:
        self.host.release(self._read.pop())
    return original(self, is_step=is_step)


def save_before_it_is_written(self, block, content):
    self._waiting[block] = content


def save_by_what_the_block_held(self):
    lost = [item for item in self._waiting.items() if self._host.lookup(item[1]) is None and self._host.num_free]
    self._waiting |= self._new
    self._new.clear()
    return [(block, self._keep(content)) for block, content in lost]


def keep_without_moving(self, original=HostTier.save):
    return original(self)[1:]


def take_what_one_rank_could_not_read(self, slot, content, original=Shelf._end):
    self._failed.clear()
    original(self, slot, content)


def read_into_blocks_that_others_may_take(self, content, original=Shelf.fetch):
    is_new = content not in self._fetching
    is_fetching = original(self, content)
    if is_fetching and is_new:
        self._host.register(self._fetching[content], content)
    return is_fetching


def store_at_once(self, original=Shelf.take_transfers):
    self._saved = deque((-STEPS_BEFORE_STORE, slot, content) for _, slot, content in self._saved)
    return original(self)


def leak_host_blocks(self, seq, original=BlockManager.free):
    seq.host_block_table.clear()
    original(self, seq)


def forget_to_release(self, seq):
    self._leave_row(seq)


def reuse_without_eviction(self):
    block, _ = self._free.popitem(last=False)
    self._references[block] = 1
    return block


def share_without_leaving_the_free_list(self, block):
    self._references[block] += 1


def index_before_it_is_full(self, seq, salt, lora_name=None):
    for index in range(len(seq.token_ids) // self.block_size):
        if salt is not None and index < len(seq.block_table):
            self.prefixes.enter(seq, index, salt)


def count_what_was_computed_of_wrong_drafts(self, entry, plan):
    pass


def accept_a_wrong_draft(entry, rows, end, original=engine.output.decoding.num_rejected):
    return max(original(entry, rows, end) - 1, 0)


def draft_before_the_prompt_is_computed(self, group, seq, plan):
    return () if seq.num_pending or seq.drafter is None else tuple(seq.drafter.guess(seq.token_ids, 2))


def run_ahead_of_drafts(self, group, seq, original=TokenBudget._is_ready):
    return seq.has_drafts or original(self, group, seq)


def keep_progress_after_preemption(seq):
    seq.candidates = None


def keep_pending_after_a_crash(self, blocks, lost, original=Scheduler.requeue_all):
    return original(self, blocks, [])


def sample_every_chunk(self, lane, seq, num_tokens, plan, original=Scheduler._schedule):
    original(self, lane, seq, num_tokens, plan)
    entry = plan.scheduled[-1]
    if not entry.num_samples:
        entry.num_samples, entry.is_end = 1, True
        seq.num_pending += 1


def plain_beyond_the_block(self, group, seq, original=Scheduler._plain_until):
    return original(self, group, seq) + 2


def plain_without_blocks(self, seq, original=BlockManager._leave_row):
    plain_until = seq.plain_until
    original(self, seq)
    seq.plain_until = plain_until


def one_row_off(plan, blocks, epoch, original=engine.batch.batch.build_request):
    request = original(plan, blocks, epoch)
    if len(request.carried_rows) > 1:
        request.carried_rows[:, 1] = request.carried_rows[0, 1]
    return request


def carry_from_the_step_before(plan, blocks, epoch, original=engine.batch.batch.build_request):
    request = original(plan, blocks, epoch)
    request.carried_steps[:] = request.step - 1
    return request


def choice_always_zero(plan, blocks, epoch, original=engine.batch.batch.build_request):
    request = original(plan, blocks, epoch)
    request.sampling.choice[:] = 0
    return request


def position_of_the_step(plan, blocks, epoch, original=engine.batch.batch.build_request):
    request = original(plan, blocks, epoch)
    request.sampling.position[:] = request.step
    return request


def one_token_short_of_min_tokens(group, seq, position, original=engine.batch.sampling_rows.banned_now):
    return original(group, seq, position + 1)


def force_before_the_tokens_are_known(self, num_unknown):
    return True


def masks_before_their_tokens(plan):
    return True


def masks_of_the_first_row(plan, epoch, stuck, original=engine.batch.masks.step_masks):
    masks = original(plan, epoch, stuck)
    masks.mask_words[:] = np.resize(masks.mask_words[:WORDS], len(masks.mask_words))
    return masks


def mask_drafts_as_what_they_follow(entry, original=engine.batch.masks._constraints):
    return original(entry)[:1] * entry.num_samples


def fork_shares_tokens(self, choice, original=Sequence.fork):
    child = original(self, choice)
    child.token_ids = self.token_ids
    return child


def forget_who_waits_aside(self, group):
    group.aside.clear()


def newest_first(queue, lane):
    queue.insert(0, lane)


def jump_the_queue(self, lane):
    self._queue_of(lane).insert(0, lane)
    self.counted.add(lane)


def share_blocks_with_other_adapters(request, original=engine.admission.admission._salt):
    return original(replace(request, adapter=None))


def adapters_one_row_late(scheduled, query_starts, original=engine.batch.batch._adapter_runs):
    runs, adapters = original(scheduled, query_starts)
    runs[:, :2] = np.minimum(runs[:, :2] + 1, query_starts[-1])
    return runs, adapters


PLANTED = [
    (BlockManager, "fork", fork_without_references),
    (BlockManager, "_writes_shared", never_copy_on_write),
    (PrefixIndex, "hash_of", hash_one_block_alone),
    (PrefixIndex, "on_device", take_all_tokens_as_cached),
    (BlockManager, "swap_in", swap_in_one_block_late),
    (BlockManager, "swap_out", swap_out_one_block_late),
    (BlockManager, "load", load_one_block_late),
    (BlockManager, "_stop_loading", preempt_with_blocks_to_be_loaded),
    (BlockManager, "take_moves", give_host_blocks_away_that_are_read),
    (HostTier, "written", save_before_it_is_written),
    (HostTier, "save", save_by_what_the_block_held),
    (HostTier, "save", keep_without_moving),
    (Shelf, "_end", take_what_one_rank_could_not_read),
    (Shelf, "fetch", read_into_blocks_that_others_may_take),
    (Shelf, "take_transfers", store_at_once),
    (BlockManager, "free", leak_host_blocks),
    (BlockManager, "free", forget_to_release),
    (BlockManager, "index_full_blocks", index_before_it_is_full),
    (BlockPool, "allocate", reuse_without_eviction),
    (BlockPool, "share", share_without_leaving_the_free_list),
    (engine.scheduling.queues, "_forget_progress", keep_progress_after_preemption),
    (engine.scheduling.queues, "insert", newest_first),
    (WaitingQueue, "add", jump_the_queue),
    (Queues, "bring_back", forget_who_waits_aside),
    (Scheduler, "settle", count_what_was_computed_of_wrong_drafts),
    (engine.output.decoding, "num_rejected", accept_a_wrong_draft),
    (Drafting, "draft", draft_before_the_prompt_is_computed),
    (TokenBudget, "_is_ready", run_ahead_of_drafts),
    (Scheduler, "requeue_all", keep_pending_after_a_crash),
    (Scheduler, "_schedule", sample_every_chunk),
    (Scheduler, "_plain_until", plain_beyond_the_block),
    (BlockManager, "_leave_row", plain_without_blocks),
    (engine.core.llm_engine, "build_request", carry_from_the_step_before),
    (engine.core.llm_engine, "build_request", one_row_off),
    (engine.core.llm_engine, "build_request", choice_always_zero),
    (engine.core.llm_engine, "build_request", position_of_the_step),
    (engine.batch.sampling_rows, "banned_now", one_token_short_of_min_tokens),
    (Thinking, "is_free_after", force_before_the_tokens_are_known),
    (engine.batch.masks, "is_known", masks_before_their_tokens),
    (engine.batch.masks, "step_masks", masks_of_the_first_row),
    (engine.batch.masks, "_constraints", mask_drafts_as_what_they_follow),
    (Sequence, "fork", fork_shares_tokens),
    (engine.admission.admission, "_salt", share_blocks_with_other_adapters),
    (engine.batch.batch, "_adapter_runs", adapters_one_row_late),
]


@pytest.fixture(scope="module")
def expected():
    """The right answers to every workload, from the engine as it is."""
    answers = {}
    for seed in range(NUM_WORKLOADS):
        rng = random.Random(seed)
        requests = random_requests(rng, rng.randint(1, 12))
        answers[seed] = {key: essence(answer) for key, answer in undisturbed(requests).items()}
    return answers


def is_caught(expected, monkeypatch) -> bool:
    """Whether some workload goes wrong: another answer, a failed check, an exception, no end."""
    num_blamed = 0
    for seed in range(NUM_WORKLOADS):
        rng = random.Random(seed)
        requests = random_requests(rng, rng.randint(1, 12))
        walking = make_engine(random_knobs(rng))
        tokens = {key: [choice[1] for choice in choices] for key, (choices, *_) in expected[seed].items()}
        monkeypatch.setattr(Drafter, "guess", foreknowing(requests, tokens, random.Random(seed)))
        if rng.random() < 0.4:
            walking.executor.crash_at = {rng.randint(1, 120) for _ in range(4)}
        try:
            answers = run(walking, requests, rng)
        except Exception:
            return True
        blamed = {key for key, answer in answers.items() if answer.error_code is not None}
        if walking.executor.crash_at:  # in flight, alone, at two of the crashes
            num_blamed += len(blamed)
            requests = [request for request in requests if request.request_id not in blamed]
        told = [(essence(answers[request.request_id]), expected[seed][request.request_id]) for request in requests]
        if any(got != right and not was_refused(got) for got, right in told):
            return True
    return num_blamed > 3


def test_the_engine_as_it_is_passes(expected, monkeypatch):
    assert not is_caught(expected, monkeypatch)


@pytest.mark.parametrize(("owner", "name", "bug"), PLANTED, ids=[bug.__name__ for *_, bug in PLANTED])
def test_a_planted_bug_is_caught(expected, monkeypatch, owner, name, bug):
    monkeypatch.setattr(owner, name, bug)
    assert is_caught(expected, monkeypatch)
