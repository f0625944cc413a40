"""How many prompt tokens a step may take while other sequences decode: these wait for it."""

import numpy as np

from engine.scheduling.plan import SchedulerOutputs

# Prompt tokens that a step may take, however long: with fewer, a prompt would hardly get on.
LEAST = 32


class PromptPace:
    """Learns from steps that compute prompts how many tokens the next one has time for.

    What is computed does not depend on it, only when: a prompt's chunks may have any size.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds  # that a step may take; 0: as long as it does
        self._max_tokens: float | None = None  # of a step that takes that long; None: no step has yet

    def measured(self, plan: SchedulerOutputs, execute_ns: np.ndarray) -> None:
        """A step took its ranks so long ([ranks] int64, nanoseconds).

        Small steps that were quick tell nothing of large ones. A step that something else on the
        machine has slowed down makes the next one small, which then tells the truth.
        """
        if not (plan.num_prompt_tokens and self._seconds):
            return
        seconds = max(execute_ns.tolist(), default=0) / 1e9
        is_limit = self._max_tokens is not None and 2 * plan.num_tokens >= self._max_tokens
        if seconds > self._seconds or (is_limit and seconds):
            self._max_tokens = plan.num_tokens * self._seconds / seconds

    def most(self, num_decoding: int) -> int | None:
        """Prompt tokens beside so many decoding sequences; None: no limit, as beside none."""
        if self._max_tokens is None or not num_decoding:
            return None
        return max(int(self._max_tokens) - num_decoding, LEAST)
