"""How many of a sequence's tokens a step computes: one of each decoding sequence, and of prompts as
many as that leaves.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.executor import Executor
from engine.scheduling.budget.prompt_pace import PromptPace
from engine.scheduling.plan import SchedulerOutputs
from engine.scheduling.queues import Queues
from engine.scheduling.sequence import Lane, Sequence, SequenceGroup, Status

# Lanes a stage, up to which a step of several stages is built ahead. More keep all stages busy by
# steps of one another, and a step ahead of them would only take the driver's time.
MAX_LANES_AHEAD = 4
# Prompt logprobs need a row of logits for each prompt token; a step takes no more than this of one
# sequence.
MAX_PROMPT_LOGPROB_ROWS = 256
# Pipeline stages work on different parts of the prompts at once: this many steps per stage, so that
# the pipeline fills quickly.
STEPS_A_STAGE = 8


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The limits of one step, and the number of steps in flight."""

    max_num_batched_tokens: int
    max_num_seqs: int
    long_prefill_token_threshold: int  # of one sequence; 0: no separate limit
    min_stage_tokens: int  # of prompts, where several stages share them
    max_decode_wait: float  # seconds of a step with prompt tokens beside decoding sequences; 0: no limit
    num_stages: int  # of the pipeline: so many steps are computed at once
    runs_ahead: bool  # whether a step may be built before the tokens that it begins with are known


def step_limits(config: EngineConfig, executor: Executor) -> StepLimits:
    return StepLimits(
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        min_stage_tokens=config.min_stage_tokens,
        max_decode_wait=config.max_decode_wait_ms / 1000,
        num_stages=max(executor.depth - executor.runs_ahead, 1),
        runs_ahead=executor.runs_ahead,
    )


class TokenBudget:
    """Counts a plan's contents against the limits; changes only the counts in the plan."""

    def __init__(self, queues: Queues, limits: StepLimits) -> None:
        self.queues = queues
        self.limits = limits
        self.pace = PromptPace(limits.max_decode_wait)
        self.long_prefill_tokens = limits.long_prefill_token_threshold or limits.max_num_batched_tokens
        # A sequence may have so many tokens that the driver does not know when it is scheduled.
        self.max_pending = int(limits.runs_ahead)

    def max_in_flight(self) -> int:
        """How many steps may be, the next one counted in. With one more than there are stages,
        which none may be built ahead for, lanes that begin between two turns would have one of
        their own for good.
        """
        limits = self.limits
        if limits.num_stages > 1:
            is_few = len(self.queues.running) <= MAX_LANES_AHEAD * limits.num_stages
            self.max_pending = int(limits.runs_ahead and is_few)
        return limits.num_stages + self.max_pending

    def max_tokens(self, plan: SchedulerOutputs) -> int:
        """Tokens of the step: with several stages a share of all uncomputed tokens, so that steps
        take equally long. There is room for prompts whatever the decoding sequences take. Lanes
        that cannot be admitted yet do not count; otherwise a prompt admitted when another request
        ends would be computed in one step.
        """
        limits = self.limits
        if limits.num_stages == 1:
            return limits.max_num_batched_tokens
        lanes = (*self.queues.cohorts.prompts, *self._first_in_line())
        left = sum(seq.num_uncomputed_tokens for lane in lanes if not lane.is_decoding for seq in lane.seqs)
        share = -(-left // (STEPS_A_STAGE * limits.num_stages))
        num_decoding = self._num_to_come(plan)
        return min(num_decoding + max(share, limits.min_stage_tokens), limits.max_num_batched_tokens)

    def is_ready(self, lane: Lane) -> bool:
        """Whether anything of it may be computed now."""
        for seq in lane.seqs:  # noqa: SIM110  # any(...) takes three times as long
            if self._is_ready(lane.group, seq):
                return True
        return False

    def is_split(self, lanes: list[Lane]) -> bool:
        """Whether of those that are never ahead of the driver some are in flight, and some are not:
        they would take turns for good, in steps of a part of them each.
        """
        never_ahead = [lane for lane in lanes if lane.group.history_matters]
        if len(never_ahead) < 2:
            return False
        are_in_flight = {any(seq.num_pending for seq in lane.seqs) for lane in never_ahead}
        return len(are_in_flight) == 2

    def num_schedulable(self, group: SequenceGroup, seq: Sequence, plan: SchedulerOutputs) -> int:
        """How many of the sequence's tokens fit into the plan."""
        num_tokens = seq.num_uncomputed_tokens
        if not self._is_ready(group, seq):
            return 0
        if num_tokens <= 1:
            return num_tokens if plan.num_tokens < plan.max_tokens else 0
        num_tokens = min(num_tokens, self.long_prefill_tokens, self.prompt_tokens_left(plan))
        if group.params.prompt_logprobs is not None:
            num_tokens = min(num_tokens, MAX_PROMPT_LOGPROB_ROWS)
        return num_tokens

    def prompt_tokens_left(self, plan: SchedulerOutputs) -> int:
        """How many more prompt tokens fit. The first prompt counts the step's decoding sequences:
        everything in the step so far is theirs, and the remaining ones still follow.
        """
        if plan.max_prompt_tokens is None:
            num_decoding = plan.num_tokens + self._num_to_come(plan)
            left, most = plan.max_tokens - num_decoding, self.pace.most(num_decoding)
            plan.max_prompt_tokens = left if most is None else min(left, most)
        return plan.max_prompt_tokens - plan.num_prompt_tokens

    def has_places(self, newcomer: Lane) -> bool:
        return newcomer.num_places <= self._num_free_places()

    def _num_to_come(self, plan: SchedulerOutputs) -> int:
        """The sequences that will have a single token in the step, and have it not yet."""
        step, num_to_come = plan.step, 0
        for lane in plan.lanes:
            if lane.status is Status.RUNNING:
                for seq in lane.seqs:
                    is_to_come = seq.last_step != step and seq.num_uncomputed_tokens == 1
                    num_to_come += is_to_come and self._is_ready(lane.group, seq)
        return num_to_come

    def _is_ready(self, group: SequenceGroup, seq: Sequence) -> bool:
        """Whether the sequence's next token, if it has one to compute, may be computed now: its
        last one is known, or need not be.
        """
        return seq.num_pending == 0 or (
            seq.num_pending <= self.max_pending
            and not seq.has_drafts
            and not group.history_matters
            and (seq.thinking is None or seq.thinking.is_free_after(seq.num_pending))
            and len(seq.token_ids) + seq.num_pending - seq.num_prompt_tokens < group.max_output_tokens
        )

    def _first_in_line(self) -> Iterator[Lane]:
        """The waiting lanes that could be admitted now."""
        num_free = self._num_free_places()
        for lane in self.queues.waiting.admissible():
            num_free -= lane.num_places
            if num_free < 0:
                return
            if not lane.waits_for_prompt:
                yield lane

    def _num_free_places(self) -> int:
        return self.limits.max_num_seqs - self.queues.num_places
