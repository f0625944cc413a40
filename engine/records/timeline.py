"""Records of the last steps, to be inspected."""

from collections import deque
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from engine.records.step_times import StepTimes

NUM_STEPS_KEPT = 2048
NUM_RECOVERIES_KEPT = 16


@dataclass(slots=True)
class StepRecord:
    """One step: its sequences, what it computed and moved, and when. Times are seconds of
    `time.monotonic()`.

    Thousands are kept, so it has tuples of strings and arrays, and no lists of a step's length:
    Python's garbage collector does not walk these.
    """

    step: int
    epoch: int
    request_ids: tuple[str, ...]  # a sequence each, in the order of the batch
    choices: np.ndarray  # [S]
    starts: np.ndarray  # [S] first position computed
    num_tokens: np.ndarray  # [S]
    num_samples: int
    num_swapped_out: int  # blocks
    num_swapped_in: int
    num_copied: int
    preempted: list[str]
    schedule_start: float
    submitted: float
    finished: float = 0.0  # the result is here
    processed: float = 0.0
    execute_ns: tuple[int, ...] = ()  # each rank's own work
    num_drafts: list[int] = field(default_factory=list)  # [S] of the tokens, if any are
    num_accepted: list[int] = field(default_factory=list)  # [S] of these, likewise


@dataclass(frozen=True, slots=True)
class Recovered:
    """From a failed step to the end of the next one that succeeded, in seconds of
    `time.monotonic()`.
    """

    start: float
    end: float


class Timeline:
    """The last `capacity` steps, how long such take, and the last recoveries."""

    def __init__(self, capacity: int = NUM_STEPS_KEPT) -> None:
        self.records: deque[StepRecord] = deque(maxlen=capacity)
        self.times = StepTimes()
        self.recovered: deque[Recovered] = deque(maxlen=NUM_RECOVERIES_KEPT)

    def steps_of(self, request_id: str, since: float, most: int) -> list[StepRecord]:
        """The last steps since then, at most `most`, that computed something of the request, in
        order.
        """
        found: list[StepRecord] = []
        for record in reversed(self.records):
            if record.processed < since:
                break
            if request_id in record.request_ids:
                found.append(record)
                if len(found) == most:
                    break
        return found[::-1]

    def steps_after(self, step: int, most: int) -> list[StepRecord]:
        """The first steps with a higher number, at most `most`, in order. They do not change any
        more.
        """
        return list(islice((record for record in self.records if record.step > step), most))
