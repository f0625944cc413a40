"""A request on the driver: a `SequenceGroup` of `Sequence`s. Workers never see either."""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from engine.grammars.interface import Matcher
from engine.outputs import CompletionOutput, FinishReason, PositionLogprobs, RequestMetrics
from engine.pooling import Pooling
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.scheduling.drafts.model_drafter import AnyDrafter
from engine.scheduling.thinking import Thinking
from engine.scheduling.token_sets.requested import ANY, NO_WORDS, BadWords, TokenSet
from engine.text.detokenizer import TextState


class Status(Enum):
    WAITING = "waiting"  # has no blocks
    RUNNING = "running"  # has device blocks
    SWAPPED = "swapped"  # has host blocks
    ASIDE = "aside"  # has no blocks, and is in no queue while another choice of its request computes the prompt
    FINISHED = "finished"


class Sequence:
    """A sequence of tokens. What is computed may lag behind its length; scheduling closes that gap.

    Tokens that a step in flight will sample count as `num_pending`: they have positions, but no ids
    yet.
    """

    __slots__ = (
        "block_hashes",
        "block_table",
        "candidates",
        "choice",
        "cumulative_logprob",
        "drafter",
        "finish_reason",
        "first_valid_step",
        "has_found_blocks",
        "host_block_table",
        "last_step",
        "matcher",
        "may_share_tail",
        "num_computed_tokens",
        "num_emitted_tokens",
        "num_indexed_blocks",
        "num_pending",
        "num_prompt_tokens",
        "num_sought_blocks",
        "plain_until",
        "pooled",
        "row",
        "sampled_row",
        "sampled_step",
        "sought_since",
        "stop_reason",
        "text",
        "thinking",
        "token_ids",
        "token_time",
    )

    def __init__(self, choice: int, token_ids: list[int], num_prompt_tokens: int) -> None:
        self.choice = choice
        self.token_ids = token_ids  # prompt, then output
        self.num_prompt_tokens = num_prompt_tokens
        self.num_computed_tokens = 0  # keys and values written, or about to be by a step in flight
        self.num_pending = 0
        self.block_table: list[int] = []  # device blocks, in order of position
        self.host_block_table: list[
            int
        ] = []  # while swapped; while running, what is found there and still to be loaded
        self.block_hashes: list[bytes] = []  # of the full blocks, as far as they were needed
        self.num_indexed_blocks = 0  # of block_table, offered to the prefix index
        self.num_sought_blocks = 0  # of the third tier, while waiting: each is asked for once
        self.sought_since: float | None = None  # seconds of time.monotonic(), while waiting for any of these
        self.may_share_tail = False  # forked, and not written to since
        self.has_found_blocks = False  # in the prefix index: others may have computed them
        self.first_valid_step = 0  # tokens sampled for it by earlier steps are ignored
        self.plain_until = 0  # steps at lower positions find a block, fill none, and are not the last; 0: unknown
        self.row: int | None = None  # of the driver's tables, while running
        self.last_step = -1  # the last step this sequence was scheduled in
        self.sampled_step = 0  # the last step built that samples its next token
        self.sampled_row = 0  # its sampled row in that step
        self.cumulative_logprob = 0.0
        self.candidates: list[tuple[int, float]] | None = (
            None  # beam search: (token id, logprob), until all have theirs
        )
        self.num_emitted_tokens = len(token_ids) - num_prompt_tokens  # output tokens that callers have
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.matcher: Matcher | None = None  # with a structured output: has taken all of the output tokens
        self.thinking: Thinking | None = None  # with a thinking budget: has taken all of them, too
        self.drafter: AnyDrafter | None = None  # if its next tokens may be guessed
        self.pooled: np.ndarray | None = None  # the sums so far, of a request for pooling
        self.text = TextState()
        self.token_time = 0.0  # when its last token came here, of time.monotonic(); 0 before the first

    @property
    def num_tokens(self) -> int:
        """Positions taken, known or pending."""
        return len(self.token_ids) + self.num_pending

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that the next steps have to compute, including a pending one: 1 while it
        decodes.
        """
        return len(self.token_ids) + self.num_pending - self.num_computed_tokens

    @property
    def has_drafts(self) -> bool:
        """Whether a step in flight checks some: how many tokens it brings is not known."""
        return self.num_uncomputed_tokens <= 0

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def fork(self, choice: int) -> "Sequence":
        """An independent copy; the block manager, not this, shares its blocks."""
        child = Sequence(choice, list(self.token_ids), self.num_prompt_tokens)
        child.num_computed_tokens = self.num_computed_tokens
        child.block_hashes = list(self.block_hashes)
        child.has_found_blocks = self.has_found_blocks
        child.last_step = self.last_step
        child.cumulative_logprob = self.cumulative_logprob
        child.matcher = None if self.matcher is None else self.matcher.copy()
        child.thinking = None if self.thinking is None else self.thinking.copy()
        child.num_emitted_tokens = self.num_emitted_tokens
        child.text = self.text.copy()
        child.token_time = self.token_time
        return child


@dataclass(slots=True, eq=False)
class Lane:
    """What is queued, preempted and restored as a unit: a choice of a request, or all of its
    beams.
    """

    group: "SequenceGroup"
    seqs: list[Sequence]  # for beams the group's own list
    order: tuple[int, int, int]  # the place in every queue, lower first; unique
    num_places: int  # running sequences that it counts as, including future beams
    status: Status = Status.WAITING
    last_step: int = -1  # the last step any of its sequences was scheduled in

    @property
    def is_decoding(self) -> bool:
        """Whether no sequence lacks more than the one token that its next step computes."""
        return all(seq.num_uncomputed_tokens <= 1 for seq in self.seqs)

    @property
    def waits_for_prompt(self) -> bool:
        """Whether the first lane of its request has yet to compute the prompt, whose blocks this
        one will share.
        """
        first = self.group.lanes[0]
        return first is not self and first.seqs[0].num_computed_tokens < first.seqs[0].num_prompt_tokens


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """A request and the sequences that answer it."""

    request: Request
    params: SamplingParams  # the request's, asked for with every row
    prompt: str | None
    prompt_token_ids: list[int]
    seqs: list[Sequence]
    order: tuple[int, int]  # its lanes' orders begin with it
    seed: int
    max_output_tokens: int  # max_tokens, within what the context leaves
    stop_token_ids: frozenset[int]  # the model's EOS (unless ignored) and the caller's
    metrics: RequestMetrics
    is_cut: bool = False  # this context is shorter than another engine's, where it began: ending by length is an error
    packed_params: bytes = b""  # `engine.batch.packed.PARAMS`
    token_set: TokenSet = ANY
    set_number: int = 0  # that of `token_set`, while a lane runs (`HeldSets`); 0: there is none
    num_candidates: int = 0  # beam search: continuations considered per beam
    prefix_salt: bytes | None = b""  # requests with the same find its blocks in the prefix index; None: none does
    bad_words: BadWords = NO_WORDS
    lanes: list[Lane] = field(default_factory=list)  # unfinished ones, in order
    aside: list[Lane] = field(default_factory=list)  # those that are ASIDE
    num_cached_tokens: int = 0  # of the prompt, found in the cache when the request was first scheduled
    num_host_tokens: int = 0  # of these, those found on the host
    num_brought_tokens: int = 0  # of these, those that the third tier was read for
    is_corrupted: bool = False  # its numbers were not finite
    # What the scheduler and the ranks had worked when it was first scheduled: `Recorder`.
    worked_before: tuple[float, float] = (0.0, 0.0)
    prompt_logprobs: list[PositionLogprobs | None] = field(default_factory=list)
    prompt_logprobs_sent: bool = False
    held_outputs: list[CompletionOutput] = field(default_factory=list)  # best_of: until the best are known
    finished_beams: list[Sequence] = field(default_factory=list)
    eos_token_ids: tuple[int, ...] = ()  # the model's, whether they end this answer or not
    history_matters: bool = False  # what is computed next depends on earlier output ids: no step ahead of the driver
    has_penalties: bool = False
    has_bias: bool = False  # logit_bias, min_tokens or bad_words
    wants_rare_columns: bool = False  # any of the sampling columns that most requests leave empty
    pooling: Pooling | None = None  # the request's: there are no samples
    is_plain: bool = False  # one choice, of whose tokens nothing is wanted but that they come: see `PlainRow`
    error: str | None = None
    error_code: str | None = None
    is_over: bool = False  # its end was returned, or is no longer wanted
    may_pass: bool = False  # be admitted during trials: has had a token, or is a suspect (engine.recovery.suspects)

    @property
    def lora_name(self) -> str | None:
        return None if self.request.adapter is None else self.request.adapter.name

    @property
    def live(self) -> list[Sequence]:
        """The unfinished sequences."""
        return [seq for seq in self.seqs if seq.finish_reason is None]

    @property
    def finished(self) -> bool:
        for seq in self.seqs:  # noqa: SIM110  # all(...) takes three times as long, and every step asks for every request
            if seq.finish_reason is None:
                return False
        return True

    def salt_of(self, seq: Sequence) -> bytes | None:
        """The salt of the cached blocks that the sequence may use; None: it may use none."""
        needs_all = self.wants_prompt_logprobs(seq) or (self.pooling is not None and self.pooling.type == "mean")
        return None if needs_all else self.prefix_salt

    def wants_prompt_logprobs(self, seq: Sequence) -> bool:
        """Whether the sequence has prompt logprobs to compute, which the cache does not hold."""
        return (
            self.params.prompt_logprobs is not None
            and seq is self.seqs[0]
            and not self.prompt_logprobs_sent
            and len(self.prompt_logprobs) < seq.num_prompt_tokens
        )
