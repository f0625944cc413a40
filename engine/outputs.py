"""Outputs: `SamplerOutput` from the workers, `RequestOutput` to the callers."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

NO_SUMS = np.empty((0, 0), np.int64)
NO_FLAGS = np.empty(0, np.bool_)
FetchedBlocks = np.ndarray  # [*, 2] int32; see `SamplerOutput.fetched`
NO_FETCHED: FetchedBlocks = np.empty((0, 2), np.int32)
NO_DRAFTS = np.empty((0, 0), np.int32)
Phase = Literal["queue", "prefill", "decode", "preemption", "swap", "recovery"]
FinishReason = Literal["stop", "length", "abort", "error"]
MAX_SPELLS = 64  # of a request that are kept: one may be preempted any number of times


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """One step's results, a row per sampled row of its `ExecuteModelRequest`, in the same order.

    The logprob arrays are empty ([0] or [0, 0]) when no row of the step asked for any.
    """

    epoch: int
    step: int
    token_ids: np.ndarray  # [R] int32
    is_finite: np.ndarray  # [R] bool; False: the row's logits held NaN, or nothing that could be sampled
    logprobs: np.ndarray  # [R] float32, of the token in token_ids (or of the given target)
    ranks: np.ndarray  # [R] int32, 1 = the most likely token
    top_ids: np.ndarray  # [R, K] int32, most likely first; ties by lower id
    top_logprobs: np.ndarray  # [R, K] float32
    execute_ns: np.ndarray  # [ranks] int64: nanoseconds each rank spent on the step
    # A row per pooled range: the sum of its hidden states, in `engine.pooling`'s UNIT, and whether
    # all were finite.
    pooled_sums: np.ndarray = field(default_factory=lambda: NO_SUMS)  # [P, D] int64
    pooled_are_finite: np.ndarray = field(default_factory=lambda: NO_FLAGS)  # [P] bool
    # Host blocks that a rank has fetched since its last answer, and 1, or 0 where it could not.
    fetched: FetchedBlocks = field(default_factory=lambda: NO_FETCHED)  # [*, 2] int32, of all ranks
    # A row per sequence that the draft model computed: its guesses of what follows the sampled
    # tokens, then zeros.
    draft_ids: np.ndarray = field(default_factory=lambda: NO_DRAFTS)  # [D, K] int32


class Logprob(NamedTuple):
    """One token's log probability (natural logarithm, raw model distribution) and rank (1 = most
    likely).
    """

    logprob: float
    rank: int
    token_bytes: bytes  # possibly half a character

    @property
    def decoded_token(self) -> str:
        return self.token_bytes.decode(errors="replace")


# For each position: token id -> Logprob, the sampled token's always among them.
PositionLogprobs = dict[int, Logprob]


@dataclass(frozen=True, slots=True)
class Why:
    """Why a request took as long as it did."""

    seconds: dict[Phase, float]  # by phase; they sum to its life so far
    draft_tokens: int  # checked for it (speculative_config)
    accepted_tokens: int  # of these
    accepted_tokens_per_pos: list[int]  # by place in the draft, from 0


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request, seconds of `time.monotonic()`; None until it happens.

    `seconds` parts the request's life, without gap or overlap, into: queue (until first scheduled),
    prefill (until the first token), decode, and what disturbed it (preemption by recompute, swap,
    recovery), each until the next token came.
    """

    arrival_time: float
    phase_start: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0
    # From its first scheduling to its end, once it has ended:
    scheduler_seconds: float = 0.0  # that steps were scheduled
    execute_seconds: float = 0.0  # that the slowest rank of each step worked
    num_draft_tokens: int = 0
    accepted_at: list[int] = field(default_factory=list)  # drafted tokens that were right, by place in the draft
    phase: Phase = "queue"
    seconds: dict[Phase, float] = field(default_factory=dict)
    spells: list[tuple[Phase, float, float]] = field(default_factory=list)  # the first phases that ended: start and end

    def enter(self, phase: Phase, now: float) -> None:
        """From now on the request's time counts for this phase."""
        self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + now - self.phase_start
        if len(self.spells) < MAX_SPELLS:
            self.spells.append((self.phase, self.phase_start, now))
        self.phase, self.phase_start = phase, now

    def drafted(self, num_tokens: int, num_accepted: int) -> None:
        """A draft was checked."""
        self.num_draft_tokens += num_tokens
        self.accepted_at += [0] * (num_tokens - len(self.accepted_at))
        for place in range(num_accepted):
            self.accepted_at[place] += 1

    def why(self, now: float) -> Why:
        """At this time, or at its end if that was before."""
        seconds = dict(self.seconds)
        if self.finished_time is None:
            seconds[self.phase] = seconds.get(self.phase, 0.0) + now - self.phase_start
        return Why(seconds, self.num_draft_tokens, sum(self.accepted_at), list(self.accepted_at))

    def finish(self, now: float) -> None:
        self.enter(self.phase, now)
        self.finished_time = now


@dataclass(slots=True)
class CompletionOutput:
    """What one choice of a request gained since the last output (a delta), or all of it once
    accumulated.

    `first_index` is the index, within the choice's output tokens, of the first token in
    `token_ids`.
    """

    index: int
    text: str
    token_ids: list[int]
    first_index: int = 0
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # None for EOS, else the stop string or stop token id
    pooled: bytes | None = None  # float32 numbers, of a request that asked for these: see `engine.pooling`

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class Tokens:
    """A prompt's, for requests that ask for nothing else."""

    ids: list[int]
    texts: list[str] | None  # as the vocabulary writes them, if they were asked for


@dataclass(slots=True)
class RequestOutput:
    """A request's output after a step. `LLMEngine.step` returns deltas; `accumulate` joins them.

    `attempt` is the number of the attempt that it belongs to (`Resume.attempt`); a journal takes
    only the current one's deltas. `error` is set when, and only when, a choice's finish_reason is
    "error"; `error_code` may then be a code of `engine.errors`.
    """

    request_id: str
    attempt: int
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt: str | None = None
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None
    error: str | None = None
    error_code: str | None = None
    max_tokens: int | None = None  # of each choice, as requested or as fixed by the engine
    fingerprint: str | None = None  # of the engine, as the gateway knows it: see `engine.checkpoint.fingerprint`
    weights_version: str | None = None  # that the engine had been given; None: it has the model's own


Sink = Callable[[list[RequestOutput]], None]  # is given a step's deltas of all requests


def failed_request(request_id: str, attempt: int, prompt_token_ids: list[int], message: str) -> RequestOutput:
    """The only output of a request that never ran."""
    choice = CompletionOutput(0, "", [], finish_reason="error")
    return RequestOutput(request_id, attempt, prompt_token_ids, [choice], finished=True, error=message)


@dataclass(slots=True)
class Accumulator:
    """Joins a request's deltas into one cumulative `RequestOutput`, whose lists grow with the next
    delta.
    """

    last: RequestOutput | None = None
    choices: dict[int, CompletionOutput] = field(default_factory=dict)
    prompt_logprobs: list[PositionLogprobs | None] | None = None

    def add(self, delta: RequestOutput) -> RequestOutput:
        """The request so far, after `delta`."""
        for new in delta.outputs:
            old = self.choices.get(new.index)
            self.choices[new.index] = _own(new) if old is None else join(old, new)
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        self.last = RequestOutput(
            request_id=delta.request_id,
            attempt=delta.attempt,
            prompt_token_ids=delta.prompt_token_ids,
            outputs=[self.choices[index] for index in sorted(self.choices)],
            finished=delta.finished,
            prompt=delta.prompt,
            prompt_logprobs=self.prompt_logprobs,
            num_cached_tokens=delta.num_cached_tokens,
            metrics=delta.metrics,
            error=delta.error,
            error_code=delta.error_code,
            max_tokens=delta.max_tokens,
            fingerprint=delta.fingerprint,
            weights_version=delta.weights_version,
        )
        return self.last


def _own(new: CompletionOutput) -> CompletionOutput:
    """A copy whose lists may grow."""
    return replace(new, token_ids=[*new.token_ids], logprobs=None if new.logprobs is None else [*new.logprobs])


def join(old: CompletionOutput, new: CompletionOutput) -> CompletionOutput:
    """Appends a choice's next delta to `old`: copying at each would cost the square of an answer's
    length.
    """
    assert new.first_index == old.first_index + len(old.token_ids), "a delta is missing or came twice"
    old.token_ids += new.token_ids
    old.text += new.text
    if new.logprobs is not None:
        old.logprobs = old.logprobs or []
        old.logprobs += new.logprobs
    old.cumulative_logprob = new.cumulative_logprob
    old.finish_reason, old.stop_reason = new.finish_reason, new.stop_reason
    return old
