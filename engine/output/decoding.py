"""Applies a step's sampled rows: append tokens, fork into n choices, stop; what each choice gained
is returned as deltas.
"""

import numpy as np

from engine.output.stopping import finish_or_continue
from engine.outputs import CompletionOutput, Logprob, PositionLogprobs, SamplerOutput, join
from engine.pooling import mean
from engine.scheduling.plan import ScheduledSequence
from engine.scheduling.sequence import Sequence, SequenceGroup
from engine.text.detokenizer import Detokenizer
from engine.text.tokenizer import Tokenizer


class SampledRows:
    """A `SamplerOutput` as plain lists, which Python reads ten times faster than arrays."""

    def __init__(self, output: SamplerOutput, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.token_ids: list[int] = output.token_ids.tolist()
        self.is_finite: list[bool] = output.is_finite.tolist()
        self.all_finite = bool(output.is_finite.all() and output.pooled_are_finite.all())
        self.pooled_sums = output.pooled_sums
        self.pooled_are_finite: list[bool] = output.pooled_are_finite.tolist()
        self._logprobs: list[float] = output.logprobs.tolist()
        self._ranks: list[int] = output.ranks.tolist()
        self._top_ids: list[list[int]] = output.top_ids.tolist()
        self._top_logprobs: list[list[float]] = output.top_logprobs.tolist()

    def are_finite(self, rows: slice, pooled: slice) -> bool:
        """Whether these sampled rows and pooled ranges are."""
        return all(self.is_finite[rows]) and all(self.pooled_are_finite[pooled])

    def logprob(self, row: int) -> float:
        return self._logprobs[row]

    def candidates(self, row: int, count: int) -> list[tuple[int, float]]:
        """The `count` most likely tokens with their logprobs, the best first."""
        return list(zip(self._top_ids[row][:count], self._top_logprobs[row][:count], strict=True))

    def position_logprobs(self, row: int, count: int) -> PositionLogprobs:
        """The row's own token and the `count` most likely ones."""
        token_bytes = self._tokenizer.bytes_of
        token_id = self.token_ids[row]
        found = {token_id: Logprob(self._logprobs[row], self._ranks[row], token_bytes(token_id))}
        for rank, (top_id, logprob) in enumerate(self.candidates(row, count), start=1):
            found.setdefault(top_id, Logprob(logprob, rank, token_bytes(top_id)))
        return found


def take_prompt_logprobs(entry: ScheduledSequence, rows: SampledRows, first_row: int) -> None:
    """Append those of the step's prompt positions; position 0 has none. Some may be known already,
    if a step in flight was computed again after a preemption.
    """
    group = entry.group
    known = group.prompt_logprobs = group.prompt_logprobs or [None]
    for index in range(len(known) - entry.prompt_row_start - 1, entry.num_prompt_rows):
        known.append(rows.position_logprobs(first_row + index, group.params.prompt_logprobs or 0))


def take_pooled(
    entry: ScheduledSequence, rows: SampledRows, first_row: int, first_pooled: int
) -> list[CompletionOutput]:
    """Add the step's part to a pooled sequence; its answer, once it has all parts."""
    seq, pooling = entry.seq, entry.group.pooling
    assert pooling is not None
    if entry.num_pooled:
        sums = rows.pooled_sums[first_pooled]
        seq.pooled = sums if seq.pooled is None else seq.pooled + sums
    if not entry.is_end:
        return []
    if seq.pooled is not None:
        pooled = mean(seq.pooled, seq.num_prompt_tokens if pooling.type == "mean" else 1)
    else:
        logprobs = [rows.logprob(row) for row in range(first_row, first_row + entry.num_given)]
        pooled = np.array(logprobs, "<f4").tobytes()
    seq.finish_reason = "stop"
    return [CompletionOutput(seq.choice, "", [], finish_reason="stop", pooled=pooled)]


def num_rejected(entry: ScheduledSequence, rows: SampledRows, end: int) -> int:
    """How many of the samples of an entry with drafts do not count, whose rows end before `end`:
    those that follow a wrong draft, or one that could not be checked.
    """
    sampled = rows.token_ids[end - entry.num_samples : end]
    checked = entry.drafts[: entry.num_checked]
    for index, (token_id, draft) in enumerate(zip(sampled, checked, strict=False), start=1):
        if token_id != draft:
            return entry.num_samples - index
    return len(entry.drafts) - len(checked)


def append_tokens(
    group: SequenceGroup, seq: Sequence, rows: SampledRows, span: tuple[int, int], detokenizer: Detokenizer
) -> CompletionOutput:
    """Give a sequence the tokens of these rows, up to its end; returns what its choice gained."""
    row, end = span
    gained = append_token(group, seq, rows, row, detokenizer)
    while (row := row + 1) < end and seq.finish_reason is None:
        gained = join(gained, append_token(group, seq, rows, row, detokenizer))
    return gained


def append_token(
    group: SequenceGroup, seq: Sequence, rows: SampledRows, row: int, detokenizer: Detokenizer
) -> CompletionOutput:
    """Give a sequence its next token; returns what its choice gained."""
    params = group.params
    token_id = rows.token_ids[row]
    first_index = len(seq.token_ids) - seq.num_prompt_tokens
    seq.token_ids.append(token_id)
    logprobs = None
    if params.logprobs is not None or params.best_of is not None:
        seq.cumulative_logprob += rows.logprob(row)
    if params.logprobs is not None:
        logprobs = [rows.position_logprobs(row, params.logprobs)]
    text = finish_or_continue(group, seq, detokenizer)
    seq.num_emitted_tokens = first_index + 1
    cumulative_logprob = None if logprobs is None else seq.cumulative_logprob
    return CompletionOutput(
        seq.choice, text, [token_id], first_index, cumulative_logprob, logprobs, seq.finish_reason, seq.stop_reason
    )


def concluded(group: SequenceGroup, seq: Sequence) -> CompletionOutput:
    """The last delta of a choice that ends without another token."""
    first_index = 0 if group.params.best_of is not None else seq.num_emitted_tokens
    return CompletionOutput(
        seq.choice, "", [], first_index, finish_reason=seq.finish_reason, stop_reason=seq.stop_reason
    )


def rank_best_of(group: SequenceGroup) -> list[CompletionOutput]:
    """The n finished choices with the highest mean logprob, renumbered; each complete."""
    gathered: dict[int, list[CompletionOutput]] = {}
    for delta in group.held_outputs:
        gathered.setdefault(delta.index, []).append(delta)

    def mean_logprob(seq: Sequence) -> float:
        return seq.cumulative_logprob / max(seq.num_output_tokens, 1)

    best = sorted(group.seqs, key=lambda seq: (-mean_logprob(seq), seq.choice))[: group.params.n]
    return [_whole(index, gathered[seq.choice]) for index, seq in enumerate(best)]


def _whole(index: int, deltas: list[CompletionOutput]) -> CompletionOutput:
    last = deltas[-1]
    logprobs = None
    if last.logprobs is not None:
        logprobs = [position for delta in deltas for position in delta.logprobs or ()]
    return CompletionOutput(
        index=index,
        text="".join(delta.text for delta in deltas),
        token_ids=[token_id for delta in deltas for token_id in delta.token_ids],
        first_index=0,
        cumulative_logprob=last.cumulative_logprob,
        logprobs=logprobs,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
    )
