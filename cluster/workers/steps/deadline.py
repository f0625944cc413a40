"""How long a step may take before its workers count as hung, derived from earlier steps' times."""

from engine.records.step_times import StepTimes

FIRST_SECONDS = 600.0  # nothing measured yet: kernels may be built or tuned
FLOOR_SECONDS = 30.0
FACTOR = 20.0  # times the slowest recent step of its size


class StepDeadline:
    """One engine's deadline, for all its epochs."""

    def __init__(self, *, first_seconds: float = FIRST_SECONDS, floor_seconds: float = FLOOR_SECONDS) -> None:
        self._first_seconds = first_seconds
        self._floor_seconds = floor_seconds
        self._times = StepTimes()

    def took(self, num_tokens: int, seconds: float) -> None:
        """Record a step's time, counted from when it became the oldest in flight."""
        self._times.took(num_tokens, seconds)

    def limit(self, num_tokens: int) -> float:
        """Seconds that a step of that many tokens may take."""
        expected = self._times.expected(num_tokens)
        return self._first_seconds if expected is None else self._floor_seconds + FACTOR * expected
