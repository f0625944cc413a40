"""How long a step takes at most, by earlier ones."""

_FORGETTING = 0.99  # a slow step counts less with each later one of its size


class StepTimes:
    """By the number of tokens: what a step of one token takes for each is far more than a large one
    does, and tells of large ones only as long as none is known.
    """

    def __init__(self) -> None:
        self._slowest: dict[int, float] = {}  # seconds per token, by the number's bits; replaced as a whole

    def took(self, num_tokens: int, seconds: float) -> None:
        bits = max(num_tokens, 1).bit_length()
        before = _FORGETTING * self._slowest.get(bits, 0.0)
        self._slowest = self._slowest | {bits: max(seconds / max(num_tokens, 1), before)}

    def expected(self, num_tokens: int) -> float | None:
        """Seconds of the slowest step of that many tokens, by those of the same size or the next
        smaller one that there were; None if there were none. From any thread.
        """
        slowest, bits = self._slowest, max(num_tokens, 1).bit_length()
        if not slowest:
            return None
        size = max((each for each in slowest if each <= bits), default=None)
        if size is not None:
            return slowest[size] * max(num_tokens, 1)
        size = min(slowest)  # all were larger
        return slowest[size] * (1 << size)
