"""How long a step may take before its workers count as hung, derived from earlier steps' times."""

FIRST_SECONDS = 600.0  # nothing measured yet: kernels may be built or tuned
FLOOR_SECONDS = 30.0
FACTOR = 20.0  # times the slowest recent step's time per token
_FORGETTING = 0.99  # a slow step counts less with each later one


class StepDeadline:
    """One engine's deadline, for all its epochs."""

    def __init__(self, *, first_seconds: float = FIRST_SECONDS, floor_seconds: float = FLOOR_SECONDS) -> None:
        self._first_seconds = first_seconds
        self._floor_seconds = floor_seconds
        self._seconds_per_token: float | None = None

    def took(self, num_tokens: int, seconds: float) -> None:
        """Record a step's time, counted from when it became the oldest in flight."""
        measured = seconds / max(num_tokens, 1)
        self._seconds_per_token = max(measured, _FORGETTING * (self._seconds_per_token or 0.0))

    def limit(self, num_tokens: int) -> float:
        """Seconds that a step of that many tokens may take."""
        if self._seconds_per_token is None:
            return self._first_seconds
        return self._floor_seconds + FACTOR * self._seconds_per_token * max(num_tokens, 1)
