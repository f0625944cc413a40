"""Which sequences of a step get drafts.

A step with drafts computes several tokens of a sequence: its last one, and guesses of the next. It
samples after each. Since a draw depends on nothing but its request's seed and its position, a guess
is right if it is the token that was drawn before it, and answers are the same to the bit with
drafts and without.
"""

from engine.config import SpeculativeConfig
from engine.scheduling.drafts.drafter import Drafter
from engine.scheduling.plan import SchedulerOutputs
from engine.scheduling.queues import Queues
from engine.scheduling.sequence import Sequence, SequenceGroup
from engine.scheduling.token_budget import StepLimits

# A step of at most so many tokens takes about as long as one of a single token: the weights, which
# are read once, take longer than the products with them.
MAX_ROWS = 32


class Drafting:
    """Changes nothing but the sequences' drafters."""

    def __init__(self, queues: Queues, settings: SpeculativeConfig | None, limits: StepLimits) -> None:
        self._queues = queues
        self._settings = settings
        self._runs_ahead = limits.runs_ahead
        self._max_rows = min(MAX_ROWS, limits.max_num_batched_tokens // 2)

    def prepare(self, group: SequenceGroup) -> None:
        """Let a new request's tokens be guessed, unless the next one depends on more than the text
        before it.
        """
        if self._settings is None or group.params.beam_width is not None or group.history_matters or group.pooling:
            return
        for seq in group.seqs:
            if seq.matcher is None and seq.thinking is None:
                seq.drafter = Drafter(self._settings)

    def must_wait(self) -> bool:
        """Whether the next step should wait for the tokens of a step in flight: drafts follow known
        tokens only.
        """
        if self._settings is None or not self._runs_ahead:
            return False
        is_small = self._num_running() < self._max_rows
        for lane in self._queues.running:
            for seq in lane.seqs:
                if seq.drafter is None or not seq.num_pending:
                    continue
                if seq.has_drafts or (is_small and seq.drafter.guess(seq.token_ids, 2)):
                    return True
        return False

    def draft(self, group: SequenceGroup, seq: Sequence, plan: SchedulerOutputs) -> tuple[int, ...]:
        """None, unless the step samples the sequence's next token and knows all before it; nor once
        prompts have been promised what the step has left.
        """
        if seq.drafter is None or seq.num_pending or seq.num_uncomputed_tokens > 1:
            return ()
        if plan.max_prompt_tokens is not None:
            return ()
        if plan.max_drafts is None:
            plan.max_drafts = min(self._max_rows, plan.max_tokens // 2) - self._num_running()
        num_wanted = group.max_output_tokens - seq.num_output_tokens - 1
        return tuple(seq.drafter.guess(seq.token_ids, min(plan.max_drafts - plan.num_drafts, num_wanted)))

    def _num_running(self) -> int:
        return sum([len(lane.seqs) for lane in self._queues.running])
