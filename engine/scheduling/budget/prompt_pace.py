"""How many prompt tokens a step may take while other sequences decode: these wait for it."""

from collections import deque

import numpy as np

from engine.scheduling.plan import SchedulerOutputs

# Prompt tokens that a step may take, however long: with fewer, a prompt would hardly get on.
LEAST = 32
# Steps that count in what decoding takes: the quickest of them does, since something else on the
# machine may have slowed one down.
NUM_STEPS = 4


class PromptPace:
    """Learns from steps how many prompt tokens the next one has time for: `seconds`, and as much as
    decoding by itself takes. Prompts would starve where a model is slow for its machine, and steps
    that decode take that long anyway.

    What is computed does not depend on it, only when: a prompt's chunks may have any size.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds  # that a step may take; 0: as long as it does
        self._decoding: deque[float] = deque(maxlen=NUM_STEPS)  # seconds of steps with few prompt tokens or none
        self._tokens_per_second: float | None = None  # of steps that take that long; None: no step has yet

    def measured(self, plan: SchedulerOutputs, execute_ns: np.ndarray) -> None:
        """A step took its ranks so long ([ranks] int64, nanoseconds).

        Small steps that were quick tell nothing of large ones. A step that something else on the
        machine has slowed down makes the next one small, which then tells the truth.
        """
        seconds = max(execute_ns.tolist(), default=0) / 1e9
        if not (self._seconds and seconds):
            return
        num_decoding = plan.num_tokens - plan.num_prompt_tokens
        if plan.num_prompt_tokens <= max(LEAST, num_decoding) and num_decoding:
            self._decoding.append(seconds)
        if plan.num_prompt_tokens:
            longest = self._longest()
            rate = self._tokens_per_second
            is_limit = rate is not None and 2 * plan.num_tokens >= rate * longest
            if seconds > longest or is_limit:
                self._tokens_per_second = plan.num_tokens / seconds

    def most(self, num_decoding: int) -> int | None:
        """Prompt tokens beside so many decoding sequences; None: no limit, as beside none."""
        if self._tokens_per_second is None or not num_decoding:
            return None
        return max(int(self._tokens_per_second * self._longest()) - num_decoding, LEAST)

    def _longest(self) -> float:
        """Seconds that a step with prompt tokens may take."""
        return max(self._seconds, 2 * min(self._decoding, default=0.0))
