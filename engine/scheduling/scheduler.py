"""Decides what the next step computes: queues running, swapped and waiting, in order, and one rule.

A step computes some of a sequence's `num_uncomputed_tokens`, the difference between its length and
`num_computed_tokens`. Prefill, chunked prefill, decode and recompute after a preemption are all
that. `TokenBudget` decides how many tokens, `Preemption` which lanes make room when blocks run out.
"""

from collections.abc import Iterable

from engine.config import EngineConfig
from engine.executor import Executor
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.budget.token_budget import TokenBudget, step_limits
from engine.scheduling.drafts.drafting import Drafting
from engine.scheduling.plan import PlainRow, ScheduledSequence, SchedulerOutputs
from engine.scheduling.preemption import Preemption, PreemptionCosts
from engine.scheduling.queues import Queues
from engine.scheduling.sequence import Lane, Sequence, SequenceGroup, Status
from engine.scheduling.tiers.third_tier import ThirdTier
from engine.scheduling.waiting.waiting_queue import WaitingQueue


class Scheduler:
    """Serves queues of lanes: each choice of a request takes its own turn. No lane starves: its
    order never changes, the first in order is never preempted for another, and a request that could
    not run alone was rejected when it was added.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        waiting: WaitingQueue,
        blocks: BlockManager,
        *,
        swap_seconds_per_block: float,
    ) -> None:
        limits = step_limits(config, executor)
        self.queues = Queues(blocks, waiting, config.watermark, limits.num_stages)
        self.budget = TokenBudget(self.queues, limits)
        self._drafting = Drafting(self.queues, config.speculative_config, limits)
        self.preemption = Preemption(self.queues, PreemptionCosts(swap_seconds_per_block))
        self._returns_tokens = limits.runs_ahead and limits.num_stages > 1
        self._max_loras = config.max_loras
        self.third_tier = ThirdTier(config, self.queues)
        self.step = 0
        self._shares = waiting.shares

    @property
    def blocks(self) -> BlockManager:
        return self.queues.blocks

    def add(self, group: SequenceGroup) -> None:
        self._drafting.prepare(group)
        self.third_tier.expect(group)
        for lane in group.lanes:
            self.queues.waiting.add(lane)

    def schedule(self, num_in_flight: int = 0) -> SchedulerOutputs:
        """The next step, beside so many in flight; it `is_empty` if there is nothing to do before
        one of these ends.
        """
        plan = SchedulerOutputs(self.step, returns_tokens=self._returns_tokens)
        cohorts = self.queues.cohorts
        waiting = [cohort for cohort in cohorts if self._must_wait(cohort.lanes)]
        if waiting and num_in_flight >= self.budget.limits.num_stages:
            return plan  # each stage has a step, and those who wait would come after one more
        plan.lanes = cohorts.take_turn(self.budget.is_ready, waiting)
        plan.max_tokens = self.budget.max_tokens(plan)
        self.third_tier.look_again()
        self._schedule_running(plan)
        if not plan.preempted:
            self._swap_in(plan)
            if not self.queues.swapped:
                self._admit_waiting(plan)
        is_idle = not self.queues.running
        moves = self.blocks.take_moves(is_step=bool(plan.scheduled) or (is_idle and self.third_tier.wants_steps))
        plan.blocks_to_swap_out, plan.blocks_to_swap_in, plan.blocks_to_copy = moves
        self.third_tier.plan(plan, is_idle=is_idle)
        if not plan.is_empty:
            plan.set_changes = self.queues.held_sets.take_changes()
            self.step += 1
        return plan

    def _must_wait(self, lanes: list[Lane]) -> bool:
        """Whether the next step of these, which decode together, waits for tokens in flight."""
        return self.budget.is_split(lanes) or self._drafting.must_wait(lanes)

    def _schedule_running(self, plan: SchedulerOutputs) -> None:
        blocks, budget = self.queues.blocks, self.budget
        drafting = self._drafting
        may_draft = not drafting.is_full
        for lane in plan.lanes:
            if lane.status is not Status.RUNNING:
                continue  # preempted for an earlier lane
            for seq in lane.seqs:
                is_plain = seq.num_computed_tokens < seq.plain_until
                if is_plain and may_draft and seq.drafter is not None:
                    is_plain = not drafting.may_have_part(seq, plan)
                if is_plain and self._go_on(lane, seq, plan):
                    continue
                if seq.host_block_table:
                    self._load(lane, seq, plan)
                    continue
                num_tokens = budget.num_schedulable(lane.group, seq, plan)
                if num_tokens == 0:
                    continue
                end = seq.num_computed_tokens + num_tokens
                if not (blocks.reserve(seq, end) or self.preemption.make_room(lane, seq, end, plan)):
                    break
                if seq.plain_until and seq.drafter is None and seq.num_computed_tokens < _last_start(lane.group, seq):
                    self._go_on(lane, seq, plan)
                    self._cross_block(lane.group, seq)
                    continue
                drafts = () if seq.drafter is None else drafting.draft(lane.group, seq, plan)
                self._schedule(lane, seq, num_tokens, plan, drafts)

    def _go_on(self, lane: Lane, seq: Sequence, plan: SchedulerOutputs) -> bool:
        """Add the next token of a sequence whose steps are plain (`Sequence.plain_until`), if the
        step has room and the token may be computed now: what `num_schedulable`, `reserve` and
        `_schedule` come to.
        """
        step = plan.step
        if plan.num_tokens >= plan.max_tokens or seq.num_pending > self.budget.max_pending:
            return False
        start = seq.num_computed_tokens
        plan.scheduled.append(PlainRow(lane.group, seq, start))
        plan.num_tokens += 1
        seq.num_computed_tokens = start + 1
        seq.num_pending += 1
        seq.last_step = lane.last_step = step
        if self._shares.are_counted:
            self._shares.charge(lane.group.request.share, 1)
        return True

    def _cross_block(self, group: SequenceGroup, seq: Sequence) -> None:
        """Its next token, by which a block is filled or begun, is in the step."""
        if seq.num_computed_tokens // self.blocks.block_size > seq.num_indexed_blocks:
            self.blocks.index_full_blocks(seq, group.prefix_salt, group.lora_name)
        seq.plain_until = self._plain_until(group, seq)

    def _plain_until(self, group: SequenceGroup, seq: Sequence) -> int:
        """Once its tokens are computed: before which position its steps are plain."""
        if not group.is_plain:
            return 0
        num_whole = min(len(seq.block_table), seq.num_indexed_blocks + 1)
        return min(num_whole * self.blocks.block_size - 1, _last_start(group, seq))

    def _swap_in(self, plan: SchedulerOutputs) -> None:
        for lane in list(self.queues.swapped):
            if not self._has_places(lane) or not self.queues.fits(
                lane, self.queues.num_admissible_blocks, self._num_blocks_to_swap_in
            ):
                if not self.queues.running and not any(seq.num_pending for seq in lane.seqs):
                    plan.outgrown.append(lane)
                return
            self.queues.swap_in(lane)
            self._schedule_newcomer(lane, plan)

    def _num_blocks_to_swap_in(self, lane: Lane) -> int:
        return self.blocks.num_blocks_to_swap_in(lane.seqs, lane.group.prefix_salt)

    def _num_blocks_to_admit(self, lane: Lane) -> int:
        return sum(self.blocks.num_blocks_to_admit(seq, lane.group.salt_of(seq)) for seq in lane.seqs)

    def _admit_waiting(self, plan: SchedulerOutputs) -> None:
        while (lane := self._next_waiting()) is not None:
            if lane.waits_for_prompt:
                self.queues.set_aside(lane)
                continue
            if any(seq.num_pending for seq in lane.seqs):
                return  # preempted while in flight: its last token is not known yet
            if not self._has_places(lane) or self.budget.prompt_tokens_left(plan) <= 0:
                return
            lengths = [self.blocks.num_blocks(seq.num_tokens) for seq in lane.seqs]
            if sum(lengths) > self.blocks.device.num_usable or max(lengths) > self.blocks.max_blocks:
                plan.outgrown.append(lane)
                return
            if not self.queues.fits(lane, self.queues.num_admissible_blocks, self._num_blocks_to_admit):
                return
            if self.third_tier.sets_aside(lane):
                continue
            self.queues.run(lane)
            plan.admitted.append(lane.group)
            self._schedule_newcomer(lane, plan)

    def _next_waiting(self) -> Lane | None:
        """The next one to be admitted, but that lanes without an adapter pass those for whose
        adapter there is no place. Such places are given in order of arrival: lanes that came after
        one that waits for a place keep none from it.
        """
        waiting = self.queues.waiting
        lane = waiting.first()
        if lane is None or self._may_have_adapter(lane):
            return lane
        oldest = waiting.oldest_with_adapter()
        return oldest if oldest is not None and self._may_have_adapter(oldest) else waiting.first_without_adapter()

    def _may_have_adapter(self, lane: Lane) -> bool:
        """Whether the oldest lane with an adapter can have its own beside this one's."""
        if lane.group.request.adapter is None:
            return True
        adapters = [each.group.request.adapter for each in (lane, self.queues.waiting.oldest_with_adapter() or lane)]
        wanted = {adapter.digest for adapter in adapters if adapter is not None}
        return len(wanted | self.queues.running_digests.keys()) <= self._max_loras

    def _has_places(self, lane: Lane) -> bool:
        """Also for its adapter: those of the running lanes are all that a step may have."""
        adapter, digests = lane.group.request.adapter, self.queues.running_digests
        if adapter is not None and adapter.digest not in digests and len(digests) >= self._max_loras:
            return False
        return self.budget.has_places(lane)

    def _schedule_newcomer(self, lane: Lane, plan: SchedulerOutputs) -> None:
        """Schedule a waiting lane. No lane is preempted for it: what does not fit waits for the
        next step.
        """
        for seq in lane.seqs:
            # One by one: each of a lane's beams finds the blocks that earlier ones will write.
            if seq.row is None:
                self._admit(lane, seq)
            if seq.host_block_table:
                self._load(lane, seq, plan)
                continue
            num_tokens = self.budget.num_schedulable(lane.group, seq, plan)
            if num_tokens and self.blocks.reserve(seq, seq.num_computed_tokens + num_tokens):
                self._schedule(lane, seq, num_tokens, plan)

    def _load(self, lane: Lane, seq: Sequence, plan: SchedulerOutputs) -> None:
        """Bring what was found on the host; it is computed on once it is all here, so that this
        step waits for nothing. The lane has its part in the step: it is not preempted for another
        of its sequences, since blocks are swapped out before others are filled.
        """
        self.blocks.load(seq, lane.group.prefix_salt, lane.group.lora_name)
        lane.last_step = plan.step

    def _admit(self, lane: Lane, seq: Sequence) -> None:
        group = lane.group
        seq.candidates = None  # arrived while it waited: the row is computed again, and returns them again
        if group.pooling is not None:  # its sum begins again
            seq.pooled, seq.first_valid_step = None, self.step
        self.blocks.admit(seq, group.salt_of(seq))
        if group.metrics.first_scheduled_time is None and lane is group.lanes[0]:
            block_size = self.blocks.block_size
            group.num_cached_tokens = min(len(seq.block_table) * block_size, seq.num_prompt_tokens)
            group.num_host_tokens = min(len(seq.host_block_table) * block_size, group.num_cached_tokens)
            group.num_brought_tokens = min(self.blocks.num_brought(seq) * block_size, group.num_host_tokens)

    def _schedule(
        self, lane: Lane, seq: Sequence, num_tokens: int, plan: SchedulerOutputs, drafts: tuple[int, ...] = ()
    ) -> None:
        """Add a sequence, whose blocks are reserved, to the plan."""
        group, blocks = lane.group, self.queues.blocks
        start = seq.num_computed_tokens
        end = start + num_tokens
        is_end = end == len(seq.token_ids) + seq.num_pending
        first, num_prompt_rows = start, 0
        if group.params.prompt_logprobs is not None and group.wants_prompt_logprobs(seq):
            first = max(start, len(group.prompt_logprobs) - 1)
            num_prompt_rows = max(min(end, seq.num_prompt_tokens - 1) - first, 0)
        num_samples = int(is_end and group.pooling is None) + len(drafts)
        num_rows = num_tokens + len(drafts)
        entry = ScheduledSequence(
            group, seq, start, num_rows, first, num_prompt_rows, num_samples, is_end, drafts=drafts
        )
        if group.pooling is not None:
            entry.pool(group.pooling)
        plan.scheduled.append(entry)
        plan.others.append(entry)
        plan.num_tokens += num_rows
        plan.num_drafts += len(drafts)
        if num_tokens > 1 or not is_end:
            plan.num_prompt_tokens += num_tokens
        seq.num_computed_tokens = start + num_rows
        if self._shares.are_counted:
            self._shares.charge(group.request.share, num_tokens)
        num_indexed = seq.num_indexed_blocks
        if end // blocks.block_size > num_indexed:
            blocks.index_full_blocks(seq, group.prefix_salt, group.lora_name)
        seq.num_pending += is_end
        seq.plain_until = self._plain_until(group, seq) if is_end and not drafts else 0
        seq.last_step = lane.last_step = plan.step
        self.queues.cohorts.scheduled(lane)
        if self._drafting.has_model:
            self._drafting.ask(entry, plan, num_indexed)
        if group.aside and end >= seq.num_prompt_tokens:
            self.queues.bring_back(group)

    def settle(self, entry: ScheduledSequence, plan: SchedulerOutputs) -> None:
        """A step with drafts has brought the sequence its tokens: what was computed of others does
        not count.
        """
        seq = entry.seq
        num_kept = len(seq.token_ids) - entry.start - 1
        entry.num_accepted, entry.was_checked = max(num_kept - 1, 0), True
        plan.num_rejected += len(entry.drafts) - entry.num_accepted
        entry.group.metrics.drafted(len(entry.drafts), entry.num_accepted)
        seq.num_computed_tokens = min(seq.num_computed_tokens, entry.start + num_kept)
        if self._shares.are_counted:
            self._shares.charge(entry.group.request.share, entry.num_accepted)
        if seq.drafter is not None:
            seq.drafter.judge(len(seq.token_ids), len(entry.drafts), entry.num_accepted)

    def retire(self, group: SequenceGroup, seq: Sequence) -> None:
        """A choice has ended: free its blocks and its place, even if a step with it is in
        flight.
        """
        lane = next(lane for lane in group.lanes if lane.seqs[0] is seq)
        self.queues.finish(lane)
        group.lanes.remove(lane)
        self.queues.bring_back(group)

    def finish(self, group: SequenceGroup) -> None:
        """As `retire`, for all remaining choices of a request."""
        for lane in group.lanes:
            self.queues.finish(lane)

    def start_over(self, group: SequenceGroup, seq: Sequence) -> None:
        """Compute a sequence, and its lane, again without the prefix index, whose blocks it found
        may be wrong. Results of steps in flight do not count.
        """
        group.prefix_salt = None
        lane = next(lane for lane in group.lanes if seq in lane.seqs)
        for member in lane.seqs:
            self.preemption.num_wasted_tokens += member.num_computed_tokens
            member.has_found_blocks = False
            member.first_valid_step = self.step
        self.queues.requeue(lane)

    def requeue_all(self, blocks: BlockManager, lost: Iterable[SchedulerOutputs]) -> list[SequenceGroup]:
        """The workers, their caches and the steps in flight are gone: all lanes wait again, with an
        empty cache. Returns those that had a place; the cost does not depend on how many were
        already waiting.
        """
        for plan in lost:
            for entry in plan.scheduled:
                entry.seq.num_pending = 0
        requeued = [*self.queues.running, *self.queues.swapped]
        for lane in requeued:
            self.queues.requeue(lane)
        blocks.count_on(self.queues.blocks)
        self.queues.blocks = blocks
        self.queues.held_sets.start_over()
        self.third_tier.start_over()
        return list(dict.fromkeys(lane.group for lane in requeued))


def _last_start(group: SequenceGroup, seq: Sequence) -> int:
    """The position of the token of which its last one is sampled, if nothing ends it before."""
    return seq.num_prompt_tokens + group.max_output_tokens - 2
