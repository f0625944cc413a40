"""Who computes how many tokens in the next step: queues waiting, running and swapped, and one rule.

A step computes some of a sequence's `num_uncomputed_tokens`, the difference between its length and
`num_computed_tokens`. Prefill, chunked prefill, decode and recompute after a preemption are all
that.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from engine.block_manager import BlockManager
from engine.sequence import Lane, Sequence, SequenceGroup, Status
from engine.waiting_line import WaitingLine, insert, remove

# Prompt logprobs need a row of logits for each prompt token; a step takes no more than this of one
# sequence.
MAX_PROMPT_LOGPROB_ROWS = 256
# Pipeline stages work on different parts of the prompts at once: so many steps a stage, for the
# pipeline to fill quickly.
STEPS_A_STAGE = 8


@dataclass(slots=True)
class ScheduledSequence:
    """A sequence's part in a step: its rows num_computed..num_computed + num_tokens - 1, and what
    is sampled from them.
    """

    group: SequenceGroup
    seq: Sequence
    start: int  # first position
    num_tokens: int
    prompt_row_start: int  # the first position whose row gives a prompt logprob, that of the next position
    num_prompt_rows: int  # sampled rows that do, before the others
    num_samples: int  # sampled rows of the last token: 0 while its end is not reached, then 1


@dataclass(slots=True)
class SchedulerOutputs:
    """One step's plan."""

    step: int
    scheduled: list[ScheduledSequence]
    num_tokens: int
    blocks_to_swap_out: list[tuple[int, int]]
    blocks_to_swap_in: list[tuple[int, int]]
    blocks_to_copy: list[tuple[int, int]]
    max_tokens: int
    num_prompt_tokens: int = 0
    max_prompt_tokens: int | None = None  # what the decoding sequences leave; not known until a prompt asks
    admitted: list[SequenceGroup] = field(default_factory=list)  # from the waiting queue
    preempted: list[Lane] = field(default_factory=list)


@dataclass(slots=True)
class PreemptionCosts:
    """What it costs to get a preempted token back; measured as the engine runs."""

    swap_seconds_per_block: float  # one way
    prefill_seconds_per_token: float


class Scheduler:
    """Keeps the queues, of lanes: each choice of a request has its own turn. Every queue is served
    in order of `Lane.order`.

    Nobody starves: the order of a lane never changes, the first in order is never preempted for
    another's sake, and a request that could not run alone was refused when it was added.
    """

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        long_prefill_token_threshold: int,
        min_stage_tokens: int,
        watermark: float,
        depth: int,
        runs_ahead: bool,
        costs: PreemptionCosts,
    ) -> None:
        self.blocks = blocks
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.long_prefill_token_threshold = long_prefill_token_threshold or max_num_batched_tokens
        self.min_stage_tokens = min_stage_tokens
        self.watermark = watermark
        self.depth = depth
        self.runs_ahead = runs_ahead
        self.shares_steps = depth > 1 and not runs_ahead  # several pipeline stages work on different steps at once
        self.costs = costs
        self.waiting = WaitingLine()
        self.running: list[Lane] = []
        self.swapped: list[Lane] = []
        self.num_preemptions_swap = 0
        self.num_preemptions_recompute = 0
        self._outgrown: list[Lane] = []  # they need more than the whole cache
        self.num_wasted_tokens = 0  # computed once and thrown away by preemption
        self.step = 0

    def add(self, group: SequenceGroup) -> None:
        for lane in group.lanes:
            self.waiting.add(lane)

    def schedule(self) -> SchedulerOutputs | None:
        """The next step, or None if there is nothing that could be done before a step in flight
        ends.
        """
        plan = SchedulerOutputs(self.step, [], 0, [], [], [], max_tokens=self._token_share())
        self._schedule_running(plan)
        if not plan.preempted:
            self._swap_in(plan)
            if not self.swapped:
                self._admit_waiting(plan)
        plan.blocks_to_swap_out, plan.blocks_to_swap_in, plan.blocks_to_copy = self.blocks.take_moves()
        if not (plan.scheduled or plan.blocks_to_swap_out or plan.blocks_to_swap_in or plan.blocks_to_copy):
            return None
        self.step += 1
        return plan

    def take_outgrown(self) -> list[Lane]:
        """Lanes met since last time that can never go on, for the cache is too small: to be
        finished now.
        """
        outgrown, self._outgrown = self._outgrown, []
        return outgrown

    def retire(self, group: SequenceGroup, seq: Sequence) -> None:
        """A choice has ended: its blocks and its seat are for others, whether or not a step with it
        is in flight.
        """
        lane = next(lane for lane in group.lanes if lane.seqs[0] is seq)
        self._leave(lane)
        group.lanes.remove(lane)
        self._bring_back(group)

    def finish(self, group: SequenceGroup) -> None:
        """As `retire`, for all that is left of a request."""
        for lane in group.lanes:
            self._leave(lane)

    def _leave(self, lane: Lane) -> None:
        if lane.status is Status.WAITING:
            self.waiting.remove(lane)
        elif lane.status is Status.RUNNING:
            remove(self.running, lane)
        elif lane.status is Status.SWAPPED:
            remove(self.swapped, lane)
        elif lane.status is Status.ASIDE:
            lane.group.aside.remove(lane)
        for seq in lane.seqs:
            self.blocks.free(seq)
        lane.status = Status.FINISHED

    def start_over(self, group: SequenceGroup, seq: Sequence) -> None:
        """Compute a sequence, and what is queued with it, again, without the prefix index: what it
        found there is not to be trusted. Results of steps in flight do not count.
        """
        group.cache_salt = None
        lane = next(lane for lane in group.lanes if seq in lane.seqs)
        if lane.status is Status.RUNNING:
            remove(self.running, lane)
        elif lane.status is Status.SWAPPED:
            remove(self.swapped, lane)
        for member in lane.seqs:
            self.num_wasted_tokens += member.num_computed_tokens
            self.blocks.free(member)
            _forget_progress(member)
            member.has_found_blocks = False
            member.first_valid_step = self.step
        if lane.status in (Status.RUNNING, Status.SWAPPED):
            lane.status = Status.WAITING
            self.waiting.add(lane)

    def requeue_all(self, blocks: BlockManager, lost: Iterable[SchedulerOutputs]) -> list[SequenceGroup]:
        """The workers and their caches are gone, and the steps in flight: everybody waits again, on
        an empty cache.

        Returns those who had to leave their place; nothing is done for each of those who waited
        already.
        """
        for plan in lost:
            for entry in plan.scheduled:
                entry.seq.num_pending = 0
        requeued = [*self.running, *self.swapped]
        for lane in requeued:
            for seq in lane.seqs:
                self.blocks.free(seq)
                _forget_progress(seq)
            lane.status = Status.WAITING
            self.waiting.add(lane)
        self.running, self.swapped = [], []
        self.blocks = blocks
        return list(dict.fromkeys(lane.group for lane in requeued))

    def _schedule_running(self, plan: SchedulerOutputs) -> None:
        decoding_left = self._decoding_share()
        for lane in list(self.running):
            if lane.status is not Status.RUNNING:
                continue  # preempted for the sake of one before it
            is_decoding = self.shares_steps and _is_decoding(lane)
            if is_decoding and decoding_left <= 0:
                continue
            for seq in lane.seqs:
                num_tokens = self._num_schedulable(lane.group, seq, plan)
                if num_tokens == 0:
                    continue
                end = seq.num_computed_tokens + num_tokens
                if not (self.blocks.reserve(seq, end) or self._make_room(lane, seq, end, plan)):
                    break
                self._schedule(lane, seq, num_tokens, plan)
                decoding_left -= is_decoding

    def _decoding_share(self) -> int:
        """Decoding sequences a step: pipeline stages are kept busy by different ones, so no step
        takes them all.
        """
        if not self.shares_steps:
            return self.max_num_seqs
        return -(-sum(len(lane.seqs) for lane in self.running if _is_decoding(lane)) // self.depth)

    def _token_share(self) -> int:
        """Tokens a step: with several stages a part of what there is, so that steps take equally
        long.

        It has room for prompts whatever the decoding sequences take. Who waits for a seat does not
        count: a prompt that comes when another request ends would be computed in one step.
        """
        if not self.shares_steps:
            return self.max_num_batched_tokens
        prompts = (lane for lane in (*self.running, *self._first_in_line()) if not _is_decoding(lane))
        left = sum(seq.num_uncomputed_tokens for lane in prompts for seq in lane.seqs)
        share = -(-left // (STEPS_A_STAGE * self.depth))
        return min(self._decoding_share() + max(share, self.min_stage_tokens), self.max_num_batched_tokens)

    def _first_in_line(self) -> Iterator[Lane]:
        """Those who wait and would have a seat now."""
        free = self.max_num_seqs - sum(lane.num_seats for lane in self.running)
        for lane in self.waiting.admissible():
            free -= lane.num_seats
            if free < 0:
                return
            if not lane.waits_for_prompt:
                yield lane

    def _make_room(self, lane: Lane, seq: Sequence, num_tokens: int, plan: SchedulerOutputs) -> bool:
        """Preempt until the sequence can grow; False if it was its own lane that had to go, or if
        nothing would help.
        """
        while not self.blocks.reserve(seq, num_tokens):
            is_alone = self.running == [lane] and lane.last_step != plan.step
            if is_alone or self.blocks.outgrows(num_tokens):
                if not seq.num_pending:  # which may be its last
                    self._outgrown.append(lane)
                return False
            victim = self._victim(lane, plan)
            if victim is None:
                return False
            self._preempt(victim, plan)
            if victim is lane:
                return False
        return True

    def _victim(self, lane: Lane, plan: SchedulerOutputs) -> Lane | None:
        """The cheapest to bring back of those behind `lane`; itself if it is the last; None if it
        is in this step.
        """
        behind = [other for other in self.running if other.order > lane.order and other.last_step != plan.step]
        if behind:
            return min(
                behind, key=lambda other: (min(self._swap_cost(other), self._recompute_cost(other)), other.order)
            )
        return None if lane.last_step == plan.step else lane

    def _preempt(self, lane: Lane, plan: SchedulerOutputs) -> None:
        if self._swap_cost(lane) < self._recompute_cost(lane):
            self.blocks.swap_out(lane.seqs)
            lane.status = Status.SWAPPED
            insert(self.swapped, lane)
            self.num_preemptions_swap += 1
        else:
            self.num_wasted_tokens += sum(seq.num_computed_tokens for seq in lane.seqs)
            for seq in lane.seqs:
                self.blocks.free(seq)
                _forget_progress(seq)
            lane.status = Status.WAITING
            self.waiting.add(lane)
            self.num_preemptions_recompute += 1
        remove(self.running, lane)
        lane.group.metrics.num_preemptions += 1
        plan.preempted.append(lane)

    def _swap_cost(self, lane: Lane) -> float:
        """Seconds to copy the lane's blocks out and in again; infinite if the host has no room."""
        num_blocks = self.blocks.num_unique_blocks(lane.seqs)
        if num_blocks > self.blocks.host.num_free:
            return float("inf")
        return 2 * num_blocks * self.costs.swap_seconds_per_block

    def _recompute_cost(self, lane: Lane) -> float:
        return sum(seq.num_computed_tokens for seq in lane.seqs) * self.costs.prefill_seconds_per_token

    def _swap_in(self, plan: SchedulerOutputs) -> None:
        for lane in list(self.swapped):
            needed = self.blocks.num_blocks_to_swap_in(lane.seqs, lane.group.cache_salt)
            if needed > self._num_admissible_blocks() or not self._has_seats(lane):
                if not self.running and not any(seq.num_pending for seq in lane.seqs):
                    self._outgrown.append(lane)
                return
            self.blocks.swap_in(lane.seqs, lane.group.cache_salt)
            remove(self.swapped, lane)
            self._run(lane, plan)

    def _admit_waiting(self, plan: SchedulerOutputs) -> None:
        while (lane := self.waiting.first()) is not None:
            if lane.waits_for_prompt:
                self._set_aside(lane)
                continue
            if any(seq.num_pending for seq in lane.seqs):
                return  # preempted while in flight: its last token is not known yet
            if not self._has_seats(lane) or self._prompt_tokens_left(plan) <= 0:
                return
            lengths = [self.blocks.num_blocks(seq.num_tokens) for seq in lane.seqs]
            if sum(lengths) > self.blocks.device.num_usable or max(lengths) > self.blocks.max_blocks:
                self._outgrown.append(lane)
                return
            needed = sum(self.blocks.num_blocks_to_admit(seq, _salt(lane.group, seq)) for seq in lane.seqs)
            if needed > self._num_admissible_blocks():
                return
            self.waiting.remove(lane)
            plan.admitted.append(lane.group)
            self._run(lane, plan)

    def _set_aside(self, lane: Lane) -> None:
        self.waiting.remove(lane)
        lane.status = Status.ASIDE
        lane.group.aside.append(lane)

    def _bring_back(self, group: SequenceGroup) -> None:
        """The prompt is computed, or will be by one of these."""
        for lane in group.aside:
            lane.status = Status.WAITING
            self.waiting.add(lane)
        group.aside.clear()

    def _num_admissible_blocks(self) -> int:
        """What newcomers may take: all but the watermark, which is left to those who run
        already.
        """
        device = self.blocks.device
        return device.num_free - (int(self.watermark * device.num_usable) if self.running else 0)

    def _has_seats(self, newcomer: Lane) -> bool:
        return sum(lane.num_seats for lane in self.running) + newcomer.num_seats <= self.max_num_seqs

    def _run(self, lane: Lane, plan: SchedulerOutputs) -> None:
        lane.status = Status.RUNNING
        insert(self.running, lane)
        for seq in lane.seqs:
            if seq.row is None:
                self._admit(lane, seq)
            num_tokens = self._num_schedulable(lane.group, seq, plan)
            if num_tokens and self.blocks.reserve(seq, seq.num_computed_tokens + num_tokens):
                self._schedule(lane, seq, num_tokens, plan)

    def _admit(self, lane: Lane, seq: Sequence) -> None:
        group = lane.group
        seq.candidates = None  # come while it waited: the row is computed, and gives them, again
        self.blocks.admit(seq, _salt(group, seq))
        if group.metrics.first_scheduled_time is None and lane is group.lanes[0]:
            group.num_cached_tokens = min(seq.num_computed_tokens, seq.num_prompt_tokens)

    def _num_schedulable(self, group: SequenceGroup, seq: Sequence, plan: SchedulerOutputs) -> int:
        """How many of the sequence's tokens this step computes."""
        if seq.num_pending and not self._can_be_ahead(group, seq, plan):
            return 0
        num_tokens = seq.num_uncomputed_tokens
        if num_tokens <= 1:
            return min(num_tokens, plan.max_tokens - plan.num_tokens)
        num_tokens = min(num_tokens, self.long_prefill_token_threshold, self._prompt_tokens_left(plan))
        if group.params.prompt_logprobs is not None:
            num_tokens = min(num_tokens, MAX_PROMPT_LOGPROB_ROWS)
        return num_tokens

    def _can_be_ahead(self, group: SequenceGroup, seq: Sequence, plan: SchedulerOutputs) -> bool:
        """Whether the sequence's next token may be computed before its last one is known."""
        return (
            self.runs_ahead
            and seq.last_step == plan.step - 1
            and not group.history_matters
            and len(seq.token_ids) + seq.num_pending - seq.num_prompt_tokens < group.max_output_tokens
        )

    def _prompt_tokens_left(self, plan: SchedulerOutputs) -> int:
        """How many more tokens of prompts fit in: the first prompt that asks has the step's
        decoding sequences counted.

        All that is in the step by then is theirs; the rest of them is still to come.
        """
        if plan.max_prompt_tokens is None:
            num_to_come = sum(
                seq.last_step != plan.step
                and seq.num_uncomputed_tokens == 1
                and (seq.num_pending == 0 or self._can_be_ahead(lane.group, seq, plan))
                for lane in self.running
                for seq in lane.seqs
            )
            num_decoding = min(plan.num_tokens + num_to_come, self._decoding_share())
            plan.max_prompt_tokens = plan.max_tokens - num_decoding
        return plan.max_prompt_tokens - plan.num_prompt_tokens

    def _schedule(self, lane: Lane, seq: Sequence, num_tokens: int, plan: SchedulerOutputs) -> None:
        """Enter a sequence, whose blocks are reserved, into the plan."""
        group = lane.group
        start = seq.num_computed_tokens
        end = start + num_tokens
        num_samples = int(end == len(seq.token_ids) + seq.num_pending)
        first, num_prompt_rows = start, 0
        if group.params.prompt_logprobs is not None and group.wants_prompt_logprobs(seq):
            first = max(start, len(group.prompt_logprobs) - 1)
            num_prompt_rows = max(min(end, seq.num_prompt_tokens - 1) - first, 0)
        plan.scheduled.append(ScheduledSequence(group, seq, start, num_tokens, first, num_prompt_rows, num_samples))
        plan.num_tokens += num_tokens
        if num_tokens > 1 or not num_samples:
            plan.num_prompt_tokens += num_tokens
        seq.num_computed_tokens = end
        if end // self.blocks.block_size > seq.num_indexed_blocks:
            self.blocks.index_full_blocks(seq, group.cache_salt)
        if num_samples:
            seq.num_pending += 1
        seq.last_step = lane.last_step = plan.step
        if group.aside and end >= seq.num_prompt_tokens:
            self._bring_back(group)


def _is_decoding(lane: Lane) -> bool:
    return all(seq.num_uncomputed_tokens <= 1 for seq in lane.seqs)


def _salt(group: SequenceGroup, seq: Sequence) -> bytes | None:
    """Of the cached blocks that the sequence may begin with."""
    return None if group.wants_prompt_logprobs(seq) else group.cache_salt


def _forget_progress(seq: Sequence) -> None:
    seq.num_computed_tokens = 0
    seq.candidates = None
