"""Finds the request that makes steps fail.

A step fails because of the workers (killed from outside, out of memory), of a transient fault, or
of a request in it, which would fail every step that it is in. So after a failure all requests are
computed again, and those of the failed step are marked with their progress. One that gets past its
mark is cleared. Those that fail again at their mark are tried: they are held back, and admitted a
few at a time, newest first, while requests that have gained a token continue. If a step fails with
a single suspect in it, that request is the cause: it ends with an error, and no other request is
affected.

The death of a process weighs more than an exception. After the first one, requests that have not
had a token here yet are tried at once, each alone: a request that crashes a process most likely
does so in its first step, and two deaths are then enough. A kill from outside weighs less:
operators and machines kill processes for reasons of their own, and so does a system that is out of
memory, which may be a request's doing. It takes MAX_KILLS consecutive ones, and no request is tried
after the first.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from engine.scheduling.plan import Part
from engine.scheduling.sequence import SequenceGroup
from engine.scheduling.waiting.waiting_queue import WaitingQueue

MAX_TRIALS = 64  # suspects are tried in at most this many parts
MAX_KILLS = 4  # consecutive kills from outside while the same tokens of a request are computed, the last with it alone


@dataclass(frozen=True, slots=True)
class _Mark:
    """A request's progress when its step failed, and the positions that the step computed of it."""

    progress: int  # tokens of all its sequences
    start: int
    end: int
    num_kills: int  # consecutive kills from outside during which the request gained no token

    def meets(self, other: Self) -> bool:
        """Whether both failures may have been caused by the same tokens."""
        return self.progress == other.progress and self.start < other.end and other.start < self.end


class Suspects:
    """Closes the waiting queue during trials, and decides which requests are still admitted
    (`SequenceGroup.may_pass`).
    """

    def __init__(self, queue: WaitingQueue) -> None:
        self._queue = queue
        self._marks: dict[SequenceGroup, _Mark] = {}
        self._waiting: list[SequenceGroup] = []  # awaiting trial, the next one last
        self._on_trial: list[SequenceGroup] = []
        self._num_at_once = 1

    def suspect(self, group: SequenceGroup) -> None:
        """A new request is a suspect from the start: other engines were lost with it."""
        self._marks[group] = _Mark(_progress(group), 0, sys.maxsize, num_kills=0)
        self._hold([*self._waiting, group], num_at_once=1)

    def judge(
        self,
        failed: Iterable[Part],
        *,
        is_death: bool,
        is_kill: bool = False,
    ) -> SequenceGroup | None:
        """The request that made a step with these requests fail; None while that is not known.

        `is_death`: a worker's process ended with the step; `is_kill`: it was ended from outside.
        """
        marks = _marks(failed)
        tried = [group for group in marks if group in self._on_trial]
        again = [group for group, mark in marks.items() if group in self._marks and mark.meets(self._marks[group])]
        new = [group for group in marks if group.metrics.first_token_time is None]
        if is_kill:
            marks = {group: replace(mark, num_kills=self._num_kills(group, again) + 1) for group, mark in marks.items()}
        self._marks |= marks
        doubtful = sorted({*again, *new}, key=lambda group: group.order[1])
        self._on_trial = [group for group in self._on_trial if group not in doubtful]
        if is_kill:
            guilty = [group for group in tried if marks[group].num_kills >= MAX_KILLS]
        else:
            guilty = again if again == doubtful and (tried or not is_death) else []
        if len(guilty) == 1:
            self._let_go()
            return guilty[0]
        if tried:
            self._hold([*self._waiting, *doubtful], num_at_once=1)
        elif again or (new and is_death and not is_kill):
            suspects = [group for group in doubtful if group in again or not again]
            self._hold([*self._waiting, *suspects], num_at_once=-(-len(suspects) // MAX_TRIALS))
        return None

    def _num_kills(self, group: SequenceGroup, again: list[SequenceGroup]) -> int:
        """The request's kills before this failure, if they were at the same tokens."""
        return self._marks[group].num_kills if group in again else 0

    def review(self) -> None:
        """Clear suspects that got past their mark or are gone; admit the next ones."""
        if not self._marks:
            return
        self._marks = {
            group: mark
            for group, mark in self._marks.items()
            if not group.finished and _progress(group) == mark.progress
        }
        self._on_trial = [group for group in self._on_trial if group in self._marks]
        self._waiting = [group for group in self._waiting if group in self._marks]
        self._let_go()

    def _hold(self, suspects: list[SequenceGroup], num_at_once: int) -> None:
        self._num_at_once = num_at_once
        self._waiting = suspects
        for group in suspects:
            self._queue.set_may_pass(group, may_pass=False)
        self._let_go()

    def _let_go(self) -> None:
        """Admit the next suspects, unless a trial is running; requests without a token must not be
        beside them.
        """
        while self._waiting and len(self._on_trial) < self._num_at_once:
            self._on_trial.append(self._waiting.pop())
            self._queue.set_may_pass(self._on_trial[-1], may_pass=True)
        self._queue.is_shut = bool(self._on_trial)


def _marks(failed: Iterable[Part]) -> dict[SequenceGroup, _Mark]:
    marks: dict[SequenceGroup, _Mark] = {}
    for entry in failed:
        group, start, end = entry.group, entry.start, entry.start + entry.num_tokens
        if not group.finished:
            known = marks.get(group, _Mark(_progress(group), start, end, num_kills=0))
            marks[group] = replace(known, start=min(known.start, start), end=max(known.end, end))
    return marks


def _progress(group: SequenceGroup) -> int:
    return sum([len(seq.token_ids) for seq in group.seqs])
