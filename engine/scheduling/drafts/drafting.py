"""Which sequences of a step get drafts.

A step with drafts computes several tokens of a sequence: its last one, and guesses of the next. It
samples after each. Since a draw depends on nothing but its request's seed and its position, a guess
is right if it is the token that was drawn before it, and answers are the same to the bit with
drafts and without. Guesses are made here, by a `Drafter`, or by a draft model at the end of the
step before (`ModelDrafter`).
"""

from collections.abc import Iterable

from engine.config import SpeculativeConfig
from engine.grammars.interface import Matcher
from engine.scheduling.budget.token_budget import StepLimits
from engine.scheduling.drafts.drafter import Drafter
from engine.scheduling.drafts.holes import Holes
from engine.scheduling.drafts.model_drafter import AnyDrafter, ModelDrafter
from engine.scheduling.plan import ScheduledSequence, SchedulerOutputs
from engine.scheduling.queues import Queues
from engine.scheduling.sequence import Lane, Sequence, SequenceGroup

# A step of at most so many tokens takes about as long as one of a single token: the weights, which
# are read once, take longer than the products with them.
MAX_ROWS = 32
# Of the tokens that the draft model has not computed, while it did not guess: what it computes in a
# step.
MAX_BEHIND = 256


class Drafting:
    """Changes nothing but the sequences' drafters, and the blocks reserved for guesses."""

    def __init__(self, queues: Queues, settings: SpeculativeConfig | None, limits: StepLimits) -> None:
        self._queues = queues
        self._settings = settings
        self.has_model = settings is not None and settings.method == "draft_model"
        self._runs_ahead = limits.runs_ahead
        self._num_stages = limits.num_stages
        self._max_num_seqs = limits.max_num_seqs
        self._max_rows = min(MAX_ROWS, limits.max_num_batched_tokens // 2)
        self._holes = Holes()

    @property
    def is_full(self) -> bool:
        """Whether the sequences leave no room for guesses, in this step and for the next one."""
        return self._num_places >= self._max_rows

    @property
    def _num_places(self) -> int:
        """Of a step: it serves the sequences of one stage's turn."""
        return -(-self._queues.num_places // self._num_stages)

    def prepare(self, group: SequenceGroup) -> None:
        """Let a new request's tokens be guessed, unless the next one depends on more than the text
        before it.
        """
        if self._settings is None:
            return
        is_plain = group.params.beam_width is None and not group.bad_words and group.pooling is None
        for seq in group.seqs:
            may_guess = is_plain and seq.thinking is None
            if self.has_model:
                seq.drafter = ModelDrafter(self._settings, may_guess=may_guess)
            elif may_guess:
                seq.drafter = Drafter(self._settings)

    def must_wait(self, lanes: list[Lane]) -> bool:
        """Whether the next step of these, which decode together, should wait for the tokens of a
        step in flight: drafts follow known tokens only.
        """
        if self._settings is None or not self._runs_ahead:
            return False
        num_places = self._num_places
        num_rows = 2 * num_places if self.has_model else num_places + 1  # with the least guesses
        decoding = _decoding(lanes)
        if any([seq.drafter is not None and seq.has_drafts for seq in decoding]):
            return True
        return num_rows <= self._max_rows and _pays(decoding, [seq for seq in decoding if seq.num_pending])

    def may_have_part(self, seq: Sequence, plan: SchedulerOutputs) -> bool:
        """Whether the step may do more for a sequence that goes on by one token: check a guess, or
        have the draft model compute anything of it.
        """
        if not isinstance(seq.drafter, Drafter):
            return True
        return not seq.num_pending and self._num_left(plan) > 0 and not seq.drafter.rests(len(seq.token_ids))

    def draft(self, group: SequenceGroup, seq: Sequence, plan: SchedulerOutputs) -> tuple[int, ...]:
        """What the step checks beside the sequence's next token, whose block is reserved. Nothing,
        unless the step samples that token and knows all before it.
        """
        if seq.drafter is None or seq.num_pending or seq.num_uncomputed_tokens > 1:
            return ()
        num_wanted = group.max_output_tokens - seq.num_output_tokens - 1
        guessed = seq.drafter.guess(seq.token_ids, min(self._num_left(plan), num_wanted))
        if guessed and seq.matcher is not None:
            guessed = _allowed(guessed, seq, seq.matcher, seq.drafter)
        length = len(seq.token_ids)
        return tuple(guessed) if guessed and self._reserve(seq, length, length + len(guessed)) else ()

    def _num_left(self, plan: SchedulerOutputs) -> int:
        """How many more drafts fit; none once prompts have been promised what the step has left."""
        if plan.max_prompt_tokens is not None:
            return 0
        if plan.max_drafts is None:
            plan.max_drafts = self._max_drafts(plan)
        return plan.max_drafts - plan.num_drafts

    def _max_drafts(self, plan: SchedulerOutputs) -> int:
        decoding = _decoding(plan.lanes)
        if not (self.has_model or _pays(decoding, [seq for seq in decoding if not seq.num_pending])):
            return 0
        return min(self._max_rows, plan.max_tokens // 2) - sum([lane.num_places for lane in plan.lanes])

    def ask(self, entry: ScheduledSequence, plan: SchedulerOutputs, num_indexed: int) -> None:
        """Enter what the draft model does of the sequence after the step, and have it guess as far
        as there is room. It computes prompts with the model, and other tokens when it next guesses.
        `num_indexed`: blocks that were in the prefix index before the step.
        """
        seq, blocks, start, end = entry.seq, self._queues.blocks, 0, 0
        if isinstance(seq.drafter, ModelDrafter):
            start, end = self._compute(entry, plan, seq.drafter)
        size = blocks.block_size
        self._holes.fill(blocks, seq, start // size, end // size)
        self._holes.leave(blocks, seq, max(end // size, num_indexed), seq.num_indexed_blocks)

    def _compute(self, entry: ScheduledSequence, plan: SchedulerOutputs, drafter: ModelDrafter) -> tuple[int, int]:
        """How many tokens the draft model has of the sequence before the step, and after it."""
        known = entry.start if drafter.num_computed is None else drafter.num_computed
        if drafter.num_computed is None or drafter.has_moved:
            size = self._queues.blocks.block_size
            num_found = entry.start // size
            num_whole = self._holes.num_whole(entry.seq, num_found)
            known = known if num_whole == num_found else min(known, num_whole * size)
            drafter.has_moved = False
        start = drafter.num_computed = known
        num_new, num_wanted = entry.num_tokens - len(entry.drafts), self._num_guesses(entry, drafter)
        if not num_wanted and num_new == 1 and entry.is_end:
            return start, start
        end = min(entry.start + num_new, len(entry.seq.token_ids))
        most = max(num_new, MAX_BEHIND - plan.num_caught_up)
        if end - start > most:
            end, num_wanted = start + most, 0
        if start < end or num_wanted:
            entry.draft_range, entry.num_proposals = (start, end), num_wanted
        plan.num_caught_up += max(end - start - num_new, 0)
        drafter.num_computed, drafter.num_asked = end, num_wanted
        return start, end

    def _num_guesses(self, entry: ScheduledSequence, drafter: ModelDrafter) -> int:
        """That the next step can check, for which there are blocks. A prompt takes no more blocks
        for them: who else is admitted is not known yet.
        """
        seq, length = entry.seq, entry.start + entry.num_tokens
        num_wanted = self._num_wanted(entry, drafter)
        is_prompt = entry.num_tokens > 1 + len(entry.drafts)
        if num_wanted and (is_prompt or not self._reserve(seq, length, length + num_wanted)):
            return min(num_wanted, len(seq.block_table) * self._queues.blocks.block_size - length)
        return num_wanted

    def _num_wanted(self, entry: ScheduledSequence, drafter: ModelDrafter) -> int:
        """As `_num_guesses`, without regard to blocks; 0 where the next step has no room."""
        seq = entry.seq
        if not entry.is_end or self.is_full:
            return 0
        if entry.start + entry.num_tokens - len(entry.drafts) > len(seq.token_ids):
            return 0  # the step was built ahead: its tokens are not known
        num_places = self._num_places
        num_left = entry.group.max_output_tokens - seq.num_output_tokens - len(entry.drafts) - 2
        num_free = self._max_num_seqs - self._queues.num_places
        num_to_come = 0 if seq.num_output_tokens else min(len(self._queues.waiting), num_free)
        share = (self._max_rows - num_places) // (num_places + num_to_come)
        num_wanted = drafter.num_wanted(len(seq.token_ids), is_checking=bool(entry.drafts))
        return max(min(num_wanted, num_left, share), 0)

    def _reserve(self, seq: Sequence, length: int, end: int) -> bool:
        """Blocks beyond a sequence's length, for guesses: no lane is preempted for them, now or
        when it next needs a block.
        """
        blocks = self._queues.blocks
        num_taken = blocks.num_blocks(end) - blocks.num_blocks(length)
        num_left = self._queues.num_admissible_blocks - self._queues.num_places
        return num_taken <= max(num_left, 0) and blocks.reserve(seq, end)


def _decoding(lanes: Iterable[Lane]) -> list[Sequence]:
    """Their sequences whose next token the next step samples, or one in flight."""
    return [seq for lane in lanes for seq in lane.seqs if seq.num_uncomputed_tokens <= 1]


def _pays(decoding: list[Sequence], guessed_for: list[Sequence]) -> bool:
    """Whether the guesses for some of the sequences may bring half a token for each of all: a step
    that checks guesses takes longer for everybody, on CPUs up to twice as long.
    """
    promised = sum([seq.drafter.promise(seq.token_ids) for seq in guessed_for if seq.drafter is not None])
    return promised >= max(len(decoding), 1)


def _allowed(guessed: list[int], seq: Sequence, matcher: Matcher, drafter: AnyDrafter) -> list[int]:
    """The guesses up to the first that the sequence's grammar forbids: that they are wrong need not
    be computed.
    """
    num_allowed = matcher.num_allowed(guessed)
    if not num_allowed:
        drafter.judge(len(seq.token_ids), len(guessed), 0)
    return guessed[:num_allowed]
