"""The late part of steps: masks of the rows that a grammar constrains, sent once the tokens before
them are known.
"""

from collections import deque
from typing import NamedTuple

import numpy as np

from engine.errors import NO_TOKEN_LEFT, TOKEN_TOO_COMPLEX, InputProcessingError
from engine.executor import Executor
from engine.grammars.interface import Constraint, Matcher
from engine.ragged import starts_of
from engine.scheduling.bans import leave_nothing
from engine.scheduling.plan import ScheduledSequence, SchedulerOutputs
from engine.scheduling.sequence import Sequence, SequenceGroup
from engine.step import StepMasks

_NONE = np.empty(0, np.int32)


class Stuck(NamedTuple):
    """A request that has no next token: it is to end with this error."""

    group: SequenceGroup
    message: str
    code: str


class OwedMasks:
    """The steps in flight whose masks have not been sent, in order."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._owed: deque[tuple[SchedulerOutputs, int]] = deque()

    def owe(self, plan: SchedulerOutputs, epoch: int) -> None:
        """The step was submitted with `awaits_masks`."""
        self._owed.append((plan, epoch))

    def send(self) -> list[Stuck]:
        """Of the steps all of whose earlier tokens are known now."""
        stuck: list[Stuck] = []
        while self._owed and is_known(self._owed[0][0]):
            plan, epoch = self._owed.popleft()
            self._executor.supply(step_masks(plan, epoch, stuck))
        return stuck

    def clear(self) -> None:
        """The steps in flight are lost."""
        self._owed.clear()


def awaits_masks(plan: SchedulerOutputs) -> bool:
    return any([entry.seq.matcher is not None and entry.num_samples for entry in plan.others])


def is_known(plan: SchedulerOutputs) -> bool:
    """Whether the tokens before the step's constrained rows are, but for drafts."""
    return all(
        len(entry.seq.token_ids) >= entry.start + entry.num_tokens - len(entry.drafts)
        for entry in plan.others
        if _is_constrained(plan, entry)
    )


def step_masks(plan: SchedulerOutputs, epoch: int, stuck: list[Stuck]) -> StepMasks:
    """Of what the rows' grammars allow; adds to `stuck`. Rows whose tokens will be discarded have
    no mask.
    """
    rows: list[tuple[ScheduledSequence, int]] = []
    constraints: list[Constraint] = []
    has_mask: list[bool] = []
    for entry in plan.scheduled:
        has_mask += [False] * entry.num_rows
        if isinstance(entry, ScheduledSequence) and _is_constrained(plan, entry):
            found = _constraints(entry)
            first = len(has_mask) - entry.num_samples
            has_mask[first : first + len(found)] = [True] * len(found)
            rows += [(entry, num_drafts) for num_drafts in range(len(found))]
            constraints += found
    if not rows:
        return StepMasks(epoch, plan.step, _NONE, _NONE)
    masks = constraints[0].matcher.masks.fill(constraints)
    for (entry, num_drafts), constraint, mask in zip(rows, constraints, masks, strict=True):
        if (found_stuck := _why_stuck(entry, num_drafts, constraint.matcher, mask)) is not None:
            if num_drafts:
                _end_before(entry, num_drafts)
            else:
                stuck.append(found_stuck)
            mask[:] = -1  # the row's token is discarded
    starts = starts_of(np.array(has_mask, np.int32) * masks.shape[1])
    return StepMasks(epoch, plan.step, starts, masks.reshape(-1))


def _constraints(entry: ScheduledSequence) -> list[Constraint]:
    """After the known tokens, and after each draft."""
    group, seq, matcher = entry.group, entry.seq, entry.seq.matcher
    assert matcher is not None
    found = [Constraint(matcher, _banned_ends(group, seq, 0))]
    for num_drafts, token_id in enumerate(entry.drafts, start=1):
        matcher = matcher.copy()
        try:
            matcher.take(token_id)
        except InputProcessingError:  # its work, since then: the grammar allowed it when the step was planned
            _end_before(entry, num_drafts)
            break
        found.append(Constraint(matcher, _banned_ends(group, seq, num_drafts)))
    return found


def _end_before(entry: ScheduledSequence, num_drafts: int) -> None:
    """What follows so many drafts has no mask. The next step finds out whether it ends the request,
    if they are right.
    """
    entry.num_checked = num_drafts - 1 if entry.num_checked is None else min(entry.num_checked, num_drafts - 1)


def _why_stuck(entry: ScheduledSequence, num_drafts: int, matcher: Matcher, mask: np.ndarray) -> Stuck | None:
    """Whether the mask leaves no token after so many drafts."""
    group = entry.group
    if (error := matcher.error) is not None:
        message = f"the structured output takes too much work at this token: {error}"
        return Stuck(group, message, TOKEN_TOO_COMPLEX)
    is_narrow = group.has_bias or group.params.allowed_token_ids
    if is_narrow and leave_nothing(group, entry.seq, mask, num_drafts):
        message = "no token is left that both the structured output and the request's other parameters allow"
        return Stuck(group, message, NO_TOKEN_LEFT)
    return None


def _is_constrained(plan: SchedulerOutputs, entry: ScheduledSequence) -> bool:
    """By a grammar, and its token counts: its sequence has not ended since the step was built."""
    seq = entry.seq
    return (
        seq.matcher is not None
        and entry.num_samples > 0
        and seq.finish_reason is None
        and plan.step >= seq.first_valid_step
    )


def _banned_ends(group: SequenceGroup, seq: Sequence, num_drafts: int) -> tuple[int, ...]:
    """The end tokens that the request does not want after so many drafts. Where its grammar leaves
    nothing else, it ends nevertheless.
    """
    is_early = len(seq.token_ids) + num_drafts - seq.num_prompt_tokens < group.params.min_tokens
    return group.eos_token_ids if is_early or group.params.ignore_eos else ()
