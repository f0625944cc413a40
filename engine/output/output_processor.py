"""From a step's results to callers' outputs: each row goes to its sequence, each sequence's gain to
its request.
"""

import logging
from collections.abc import Sequence as Seq

from engine.errors import NO_TOKEN_LEFT, InputProcessingError, SquadronError
from engine.output import beam_search, decoding
from engine.output.stopping import replay_text
from engine.outputs import CompletionOutput, PositionLogprobs, RequestOutput, SamplerOutput
from engine.scheduling.bans import leave_nothing
from engine.scheduling.plan import Part, PlainRow, ScheduledSequence, SchedulerOutputs
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence, SequenceGroup, Status
from engine.text.detokenizer import Detokenizer
from engine.text.tokenizer import Tokenizer

logger = logging.getLogger("squadron.engine")


class OutputProcessor:
    """Applies results to sequences. A failure of a request's rows ends that request; the batch
    continues.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self.detokenizer = Detokenizer(tokenizer.token_bytes, tokenizer.special_ids, vocab_size)
        self._whole_texts = self.detokenizer.whole_texts
        self.num_discarded_rows = 0  # sampled by a step built ahead, for a sequence that had ended

    def process(
        self, plan: SchedulerOutputs, output: SamplerOutput, scheduler: Scheduler, now: float
    ) -> tuple[list[RequestOutput], list[SequenceGroup]]:
        """Go through the plan in row order; `now` is when the results arrived. Returns what is to
        be told, and the requests that end with it.
        """
        rows = decoding.SampledRows(output, self.tokenizer)
        outputs: list[RequestOutput] = []
        ended: list[SequenceGroup] = []
        gained: list[CompletionOutput] = []
        row, pooled, scheduled = 0, 0, plan.scheduled
        guesses = iter(output.draft_ids.tolist())
        for index, part in enumerate(scheduled, start=1):
            if (told := self._grow(part, rows, row, plan.step)) is not None:
                outputs.append(told)
                row += 1
                continue
            entry = part.whole()
            first_row, first_pooled = row, pooled
            row += entry.num_rows
            pooled += entry.num_pooled > 0
            if entry.is_end:
                entry.seq.num_pending -= 1
            end = row - decoding.num_rejected(entry, rows, row) if entry.drafts else row
            is_finite = rows.all_finite or rows.are_finite(slice(first_row, end), slice(first_pooled, pooled))
            is_wrong = not is_finite and not leave_nothing(entry.group, entry.seq)
            if is_wrong:
                scheduler.blocks.prefixes.distrust(entry.group)
            if entry.seq.finish_reason is not None or plan.step < entry.seq.first_valid_step:
                self.num_discarded_rows += entry.num_samples
                plan.num_discarded += entry.num_samples
            elif is_wrong and entry.seq.has_found_blocks:
                plan.num_discarded += entry.num_samples
                logger.warning("request %s is computed again: not finite, on found blocks", entry.group.request.id)
                scheduler.start_over(entry.group, entry.seq)
            elif row > first_row or pooled > first_pooled:
                self._apply(entry, rows, (first_row, end, first_pooled), gained, scheduler, is_finite=is_finite)
                if entry.drafts:
                    scheduler.settle(entry, plan)
            if entry.draft_range is not None:
                entry.take_proposals(next(guesses, []))
            # Sequences of a group are mostly neighbours: its output is made after the last of them.
            group = entry.group
            if index == len(scheduled) or scheduled[index].group is not group:
                if (told := self._tell_or_fail(group, gained, scheduler, now)) is not None:
                    outputs.append(told)
                    ended += [group] if told.finished else []
                gained = []
        return outputs, ended

    def replay(self, group: SequenceGroup) -> None:
        """Make what follows from the tokens that a new request's choices already have."""
        for seq in group.seqs:
            replay_text(group, seq, self.detokenizer)
        for seq, cumulative_logprob in zip(group.seqs, group.request.resume.cumulative_logprobs, strict=False):
            seq.cumulative_logprob = cumulative_logprob

    def conclude(self, group: SequenceGroup) -> RequestOutput:
        """The only output of a request that had ended when it arrived."""
        return _request_output(group, [decoding.concluded(group, seq) for seq in group.seqs])

    def abort(self, group: SequenceGroup) -> RequestOutput:
        """End a request with what its choices have; returns its last output. Beams, and the best of
        several, have nothing before they end.
        """
        live = list(group.live)
        for seq in live:
            seq.finish_reason = "abort"
        if group.params.beam_width is None and group.params.best_of is None:
            return _request_output(group, [decoding.concluded(group, seq) for seq in live])
        nothing = [CompletionOutput(choice, "", [], finish_reason="abort") for choice in range(group.params.n)]
        return _request_output(group, nothing)

    def fail(
        self, group: SequenceGroup, message: str, code: str | None = None, gained: Seq[CompletionOutput] = ()
    ) -> RequestOutput:
        """End a request's running choices; returns its last output, with what its choices gained in
        this step.
        """
        group.error, group.error_code = message, code
        told = {} if group.params.best_of is not None else {delta.index: delta for delta in gained}
        for seq in group.live:
            seq.finish_reason = "error"
            delta = told.setdefault(seq.choice, decoding.concluded(group, seq))
            delta.finish_reason = "error"
        return _request_output(group, list(told.values()))

    def _grow(self, part: Part, rows: decoding.SampledRows, row: int, step: int) -> RequestOutput | None:
        """What a sequence gains that goes on by a plain row; None, and nothing is changed, if more
        than that follows from its token, or it is none.
        """
        if not (isinstance(part, PlainRow) and rows.all_finite):
            return None
        token_id = rows.token_ids[row]
        group, seq, metrics = part.group, part.seq, part.group.metrics
        text = self._whole_texts[token_id] if 0 <= token_id < len(self._whole_texts) else None
        if text is None or token_id in group.stop_token_ids or seq.text.undecoded:
            return None
        if seq.finish_reason is not None or step < seq.first_valid_step or metrics.phase != "decode":
            return None
        first_index = len(seq.token_ids) - seq.num_prompt_tokens
        seq.token_ids.append(token_id)
        seq.num_pending -= 1
        seq.num_emitted_tokens = first_index + 1
        return _delta(group, [CompletionOutput(seq.choice, text, [token_id], first_index)])

    def _apply(
        self,
        entry: ScheduledSequence,
        rows: decoding.SampledRows,
        span: tuple[int, int, int],  # of the entry's sampled rows that count, and the first of its pooled ranges
        gained: list[CompletionOutput],
        scheduler: Scheduler,
        *,
        is_finite: bool,
    ) -> None:
        group, seq = entry.group, entry.seq
        first_row, end, first_pooled = span
        sampled_row = first_row + entry.num_prompt_rows
        try:
            if not is_finite:
                group.is_corrupted = not leave_nothing(group, seq)
                raise _no_token(group, seq)
            if entry.num_prompt_rows:
                decoding.take_prompt_logprobs(entry, rows, first_row)
            if group.pooling is not None:
                gained += decoding.take_pooled(entry, rows, first_row, first_pooled)
            elif entry.num_samples and group.params.beam_width is not None:
                seq.candidates = rows.candidates(sampled_row, group.num_candidates)
            elif entry.num_samples:
                gained.append(decoding.append_tokens(group, seq, rows, (sampled_row, end), self.detokenizer))
            if seq.finish_reason == "length" and group.is_cut:
                seq.finish_reason = None
                raise InputProcessingError(
                    f"{len(seq.token_ids)} tokens fill the context here; the request was begun where it is longer"
                )
            if seq.finish_reason is not None:
                scheduler.retire(group, seq)
        except Exception as error:
            group.error, group.error_code = _trouble(group, error)

    def _tell_or_fail(
        self, group: SequenceGroup, gained: list[CompletionOutput], scheduler: Scheduler, now: float
    ) -> RequestOutput | None:
        try:
            return self._tell(group, gained, scheduler, now)
        except Exception as error:
            return self.fail(group, *_trouble(group, error), gained=gained)

    def _tell(
        self, group: SequenceGroup, gained: list[CompletionOutput], scheduler: Scheduler, now: float
    ) -> RequestOutput | None:
        """The caller's output; None if there is none yet, or no more."""
        if group.is_over:
            return None
        if group.error is not None:
            return self.fail(group, group.error, group.error_code, gained=gained)
        has_candidates = group.params.beam_width is not None and any(seq.candidates for seq in group.live)
        if not (gained or has_candidates):
            return None
        if group.metrics.phase != "decode":
            self._note_token(group, scheduler, now)
        if has_candidates:
            is_over = beam_search.advance(group, scheduler.blocks)
            return _request_output(group, beam_search.results(group, self.tokenizer)) if is_over else None
        if group.params.best_of is not None:
            group.held_outputs += gained
            return _request_output(group, decoding.rank_best_of(group)) if group.finished else None
        return _request_output(group, gained)

    def _note_token(self, group: SequenceGroup, scheduler: Scheduler, now: float) -> None:
        """Record the time of the first token, or of the first one after a disturbance; not of a
        token that arrives after a preemption.
        """
        is_preempted = group.metrics.phase in ("preemption", "swap")
        if not is_preempted or any(lane.status is Status.RUNNING for lane in group.lanes):
            group.metrics.enter("decode", now)
        group.metrics.first_token_time = group.metrics.first_token_time or now
        scheduler.queues.waiting.set_may_pass(group, may_pass=True)


def _no_token(group: SequenceGroup, seq: Sequence) -> InputProcessingError:
    """Why a row's result is none."""
    if leave_nothing(group, seq):
        return InputProcessingError("no token is left that the request's parameters allow", code=NO_TOKEN_LEFT)
    if group.pooling is not None:
        return InputProcessingError("the model gave no finite hidden states for this request")
    return InputProcessingError("the model gave no finite probabilities for this request's next token")


def _trouble(group: SequenceGroup, error: Exception) -> tuple[str, str | None]:
    """The error, and its code, of a request that failed by itself; also logged."""
    message = str(error) if isinstance(error, SquadronError) else f"{type(error).__name__}: {error}"
    logger.warning("request %s failed: %s", group.request.id, message)
    return message, error.code if isinstance(error, InputProcessingError) else None


def _request_output(group: SequenceGroup, gained: list[CompletionOutput]) -> RequestOutput:
    prompt_logprobs = None
    if group.params.prompt_logprobs is not None and not group.prompt_logprobs_sent:
        prompt_logprobs = group.prompt_logprobs or [None]
        group.prompt_logprobs_sent = True
    group.is_over = group.finished
    return _delta(group, gained, prompt_logprobs)


def _delta(
    group: SequenceGroup,
    gained: list[CompletionOutput],
    prompt_logprobs: list[PositionLogprobs | None] | None = None,
) -> RequestOutput:
    request = group.request
    return RequestOutput(
        request.id,
        request.resume.attempt,
        group.prompt_token_ids,
        gained,
        group.is_over,
        group.prompt,
        prompt_logprobs,
        group.num_cached_tokens,
        group.metrics,
        group.error,
        group.error_code,
        group.max_output_tokens,
    )
