"""Whose turn it is among API keys: of those that wait, the one that has been given the fewest
tokens for its weight.

The virtual token counters of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024):
each key's counter grows by the tokens that steps compute for it, over its weight. A key that was
idle begins level with the lowest of those that wait: it gets no credit for time in which it asked
for nothing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from engine.request import Request, Share
from engine.scheduling.sequence import Lane

NO_TOKENS: Mapping[str | None, float] = {}


class FairShares:
    """Counters by key; requests without a key count as one key.

    While there is only one, nothing is counted, and its lanes are served in their own order.
    """

    def __init__(self) -> None:
        self._served: dict[str | None, float] = {}  # weighted tokens, by key
        self._num_waiting: Counter[str | None] = Counter()  # lanes
        self._last = 0.0  # the counter of the key whose lane was the last to leave
        self.are_counted = False  # whether there is more than one key

    def join(self, request: Request) -> None:
        """A lane of the request begins to wait."""
        key = request.share.key
        if not self._num_waiting[key]:
            level = min((self._served[other] for other in self._num_waiting if other != key), default=self._last)
            self._served[key] = max(self._served.get(key, level), level)
            self.are_counted = len(self._served) > 1
        self._num_waiting[key] += 1

    def leave(self, request: Request) -> None:
        """A lane of the request waits no more."""
        key = request.share.key
        self._last = self._served[key]
        self._num_waiting[key] -= 1
        if not self._num_waiting[key]:
            del self._num_waiting[key]

    def charge(self, share: Share, num_tokens: int) -> None:
        """A step computes tokens for a key."""
        self._served[share.key] += num_tokens / share.weight

    def turn(self, firsts: Sequence[Lane], promised: Mapping[str | None, float] = NO_TOKENS) -> Lane:
        """Which of the keys' first lanes is next; `promised` are weighted tokens to be counted too.

        Priority comes first, as among the lanes of one key: one level of it is a distance in
        `order`, and only lanes compete whose handicap is not more than that of the first in order.
        Of these, lanes that were preempted return in order, and newcomers wait for their key's
        turn.
        """
        if len(firsts) == 1:
            return firsts[0]
        handicap = _handicap(min(firsts, key=lambda lane: lane.order))

        def place(lane: Lane) -> tuple[bool, float, tuple[int, int, int]]:
            is_new = lane.last_step < 0
            key = lane.group.request.share.key
            return is_new, self._served[key] + promised.get(key, 0.0) if is_new else 0.0, lane.order

        return min((lane for lane in firsts if _handicap(lane) <= handicap), key=place)


def _handicap(lane: Lane) -> int:
    """Arrivals that its priority puts it behind."""
    return lane.order[0] - lane.order[1]
