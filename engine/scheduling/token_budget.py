"""How many of a sequence's tokens a step computes: one of each decoding sequence, and of prompts as
many as that leaves.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.executor import Executor
from engine.scheduling.plan import SchedulerOutputs
from engine.scheduling.queues import Queues
from engine.scheduling.sequence import Lane, Sequence, SequenceGroup

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
    depth: int  # steps in flight
    runs_ahead: bool  # whether a step may be built before the previous step's tokens are known


def step_limits(config: EngineConfig, executor: Executor) -> StepLimits:
    return StepLimits(
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        min_stage_tokens=config.min_stage_tokens,
        depth=executor.depth,
        runs_ahead=executor.runs_ahead,
    )


class TokenBudget:
    """Counts a plan's contents against the limits; changes only the counts in the plan."""

    def __init__(self, queues: Queues, limits: StepLimits) -> None:
        self.queues = queues
        self.limits = limits
        self.long_prefill_tokens = limits.long_prefill_token_threshold or limits.max_num_batched_tokens
        # Several pipeline stages work on different steps at once.
        self.shares_steps = limits.depth > 1 and not limits.runs_ahead
        self.runs_ahead = limits.runs_ahead  # a local copy: used for every row of a step

    def max_tokens(self) -> int:
        """Tokens per step: with several stages a share of all uncomputed tokens, so that steps take
        equally long. There is room for prompts whatever the decoding sequences take. Lanes that
        cannot be admitted yet do not count; otherwise a prompt admitted when another request ends
        would be computed in one step.
        """
        limits = self.limits
        if not self.shares_steps:
            return limits.max_num_batched_tokens
        prompts = (lane for lane in (*self.queues.running, *self._first_in_line()) if not lane.is_decoding)
        left = sum(seq.num_uncomputed_tokens for lane in prompts for seq in lane.seqs)
        share = -(-left // (STEPS_A_STAGE * limits.depth))
        return min(self.decoding_share() + max(share, limits.min_stage_tokens), limits.max_num_batched_tokens)

    def decoding_share(self) -> int:
        """Decoding sequences per step: pipeline stages work on different ones, so no step takes
        them all.
        """
        if not self.shares_steps:
            return self.limits.max_num_seqs
        num_decoding = sum(len(lane.seqs) for lane in self.queues.running if lane.is_decoding)
        return -(-num_decoding // self.limits.depth)

    def num_schedulable(self, group: SequenceGroup, seq: Sequence, plan: SchedulerOutputs) -> int:
        """How many of the sequence's tokens fit into the plan."""
        num_tokens = seq.num_uncomputed_tokens
        if seq.num_pending and (num_tokens <= 0 or not self._can_be_ahead(group, seq, plan)):
            return 0  # not even how many tokens a step with drafts brings is known
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
            num_to_come = sum(
                seq.last_step != plan.step
                and seq.num_uncomputed_tokens == 1
                and (seq.num_pending == 0 or self._can_be_ahead(lane.group, seq, plan))
                for lane in self.queues.running
                for seq in lane.seqs
            )
            num_decoding = min(plan.num_tokens - plan.num_drafts + num_to_come, self.decoding_share())
            plan.max_prompt_tokens = plan.max_tokens - plan.num_drafts - num_decoding
        return plan.max_prompt_tokens - plan.num_prompt_tokens

    def has_places(self, newcomer: Lane) -> bool:
        return newcomer.num_places <= self._num_free_places()

    def follows(self, seq: Sequence, step: int) -> bool:
        """Whether the workers have the sequence's last token by then, which the driver has not."""
        return self.runs_ahead and seq.last_step == step - 1

    def _can_be_ahead(self, group: SequenceGroup, seq: Sequence, plan: SchedulerOutputs) -> bool:
        """Whether the sequence's next token, if it has one to compute, may be computed before its
        last one is known.
        """
        return (
            self.follows(seq, plan.step)
            and not group.history_matters
            and (seq.num_pending < 2 or not group.bad_words)  # workers compare one token: `bans.banned_pairs`
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
