"""A gateway's memory of recent requests, from which it reports where their time went."""

import time
from collections import OrderedDict
from dataclasses import dataclass, field

NUM_REQUESTS_REMEMBERED = 4096


@dataclass(slots=True)
class Asked:
    """One request."""

    own_id: str  # the request's id in the engine
    arrived: float = field(default_factory=time.monotonic)
    seconds_lost: float = 0.0  # on replicas that were lost or handed it back, and waiting for the current one


class History:
    """The last requests; if several have the same id, the last of them."""

    def __init__(self) -> None:
        self._asked: OrderedDict[str, Asked] = OrderedDict()

    def add(self, request_id: str, own_id: str) -> None:
        self._asked[request_id] = Asked(own_id)
        if len(self._asked) > NUM_REQUESTS_REMEMBERED:
            self._asked.popitem(last=False)

    def begin_again(self, request_id: str, own_id: str) -> None:
        """The request's time until now was lost."""
        asked = self._asked.get(request_id)
        if asked is not None and asked.own_id == own_id:
            asked.seconds_lost = time.monotonic() - asked.arrived

    def find(self, request_id: str) -> Asked | None:
        """By the client's id; None if it is unknown or forgotten."""
        return self._asked.get(request_id)
