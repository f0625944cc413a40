"""What a gateway remembers of requests, for those who ask why one took so long."""

import time
from collections import OrderedDict
from dataclasses import dataclass, field

NUM_REQUESTS_REMEMBERED = 4096


@dataclass(slots=True)
class Asked:
    """One request."""

    own_id: str  # by which the engine knows it
    arrived: float = field(default_factory=time.monotonic)
    seconds_lost: float = 0.0  # on replicas that were lost or handed it back, and waiting for the one that has it

    def begin_again(self) -> None:
        """All until now was lost."""
        self.seconds_lost = time.monotonic() - self.arrived


class History:
    """The last requests; of several with one id the last one."""

    def __init__(self) -> None:
        self._asked: OrderedDict[str, Asked] = OrderedDict()

    def add(self, request_id: str, own_id: str) -> Asked:
        asked = self._asked[request_id] = Asked(own_id)
        if len(self._asked) > NUM_REQUESTS_REMEMBERED:
            self._asked.popitem(last=False)
        return asked

    def find(self, request_id: str) -> Asked | None:
        """By the client's id; None if it is not known (any more)."""
        return self._asked.get(request_id)
