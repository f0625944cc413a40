"""A step as planned by the scheduler, before its arrays are built."""

from dataclasses import dataclass, field
from typing import ClassVar

from engine.pooling import Pooling
from engine.scheduling.drafts.model_drafter import ModelDrafter
from engine.scheduling.sequence import Lane, Sequence, SequenceGroup
from engine.scheduling.token_sets.requested import TokenSet


class PlainRow:
    """The part in a step of a sequence that goes on by one token, and of which nothing else is
    wanted (`SequenceGroup.is_plain`): most parts of most steps.
    """

    __slots__ = ("group", "seq", "start")
    num_tokens: ClassVar[int] = 1
    num_rows: ClassVar[int] = 1
    num_samples: ClassVar[int] = 1
    num_proposals: ClassVar[int] = 0
    num_accepted: ClassVar[int] = 0
    drafts: ClassVar[tuple[int, ...]] = ()

    def __init__(self, group: SequenceGroup, seq: Sequence, start: int) -> None:
        self.group = group
        self.seq = seq
        self.start = start  # its position

    def whole(self) -> "ScheduledSequence":
        """The same, as any other part."""
        return ScheduledSequence(
            self.group,
            self.seq,
            self.start,
            num_tokens=1,
            prompt_row_start=self.start,
            num_prompt_rows=0,
            num_samples=1,
            is_end=True,
        )


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
    num_samples: int  # sampled rows of the last tokens: 0 while its end is not reached, then 1 and one for each draft
    is_end: bool  # the last token is computed
    # Of a request for pooling, in place of samples:
    num_pooled: int = 0  # last rows, whose hidden states are summed
    num_given: int = 0  # sampled rows of the last token, with the tokens whose log probabilities are asked for
    drafts: tuple[int, ...] = ()  # guesses of what follows the known tokens, the last of its tokens
    num_checked: int | None = None  # of the drafts, if what follows the others cannot be drawn
    num_accepted: int = 0  # of the drafts, once applied
    was_checked: bool = False  # its drafts were applied: the sequence had not ended meanwhile
    # Known tokens start..end that the draft model computes in the step; None: it has no part in it.
    draft_range: tuple[int, int] | None = None
    num_proposals: int = 0  # tokens that it then guesses, after those that the step samples

    def whole(self) -> "ScheduledSequence":
        return self

    def pool(self, pooling: Pooling) -> None:
        """Add what the step computes for a request that asks for numbers."""
        if pooling.type == "mean":
            self.num_pooled = self.num_tokens
        elif pooling.type == "last":
            self.num_pooled = int(self.is_end)
        else:
            self.num_given = len(pooling.token_ids) if self.is_end else 0

    @property
    def num_rows(self) -> int:
        """Sampled rows in all."""
        return self.num_prompt_rows + self.num_given + self.num_samples

    def take_proposals(self, guessed: list[int]) -> None:
        """What the draft model has guessed after the sequence's tokens, those of this step among
        them.
        """
        if self.num_proposals and isinstance(self.seq.drafter, ModelDrafter):
            self.seq.drafter.take(len(self.seq.token_ids), guessed[: self.num_proposals])


Part = PlainRow | ScheduledSequence


@dataclass(slots=True)
class SchedulerOutputs:
    """One step's plan; only the scheduler writes to it, and who applies its results."""

    step: int
    max_tokens: int = 0
    lanes: list[Lane] = field(default_factory=list)  # running ones that it serves, in order
    scheduled: list[Part] = field(default_factory=list)
    others: list[ScheduledSequence] = field(default_factory=list)  # of these, those that are not plain
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    num_drafts: int = 0
    num_rejected: int = 0  # of the drafts, once applied
    num_discarded: int = 0  # rows sampled, once applied, that do not count: their sequences had ended, or begin again
    max_drafts: int | None = None  # computed for the first sequence that may have some
    num_caught_up: int = 0  # tokens of earlier steps that the draft model computes
    max_prompt_tokens: int | None = None  # what the decoding sequences leave; computed for the first prompt
    blocks_to_swap_out: list[tuple[int, int]] = field(default_factory=list)
    blocks_to_swap_in: list[tuple[int, int]] = field(default_factory=list)
    blocks_to_copy: list[tuple[int, int]] = field(default_factory=list)
    blocks_to_store: list[tuple[int, bytes]] = field(default_factory=list)  # host block, content
    blocks_to_fetch: list[tuple[int, bytes]] = field(default_factory=list)
    fetch_addresses: list[str] = field(default_factory=list)  # see `ExecuteModelRequest`
    awaits_fetches: bool = False  # there is nothing else to do
    awaits_stores: bool = False  # another engine waits for them
    set_changes: list[tuple[int, TokenSet | None]] = field(default_factory=list)  # see `HeldSets.take_changes`
    returns_tokens: bool = False  # see `ExecuteModelRequest`
    num_stored: int = 0  # once it is answered: see `HostTier.num_done`
    admitted: list[SequenceGroup] = field(default_factory=list)  # from the waiting queue
    preempted: list[Lane] = field(default_factory=list)
    # Lanes that may be preempted: cost, order, lane; a heap, made for the first that needs room.
    victims: list[tuple[float, tuple[int, int, int], Lane]] | None = None
    # They can never continue, because the cache is too small: to be finished now.
    outgrown: list[Lane] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether the workers have nothing to do: a step that only moves blocks is one, too."""
        is_moving = self.blocks_to_swap_out or self.blocks_to_swap_in or self.blocks_to_copy or self.blocks_to_store
        return not (self.scheduled or is_moving or self.blocks_to_fetch or self.awaits_fetches)
