"""A gateway's memory of recent requests, from which it reports where their time went."""

import time
from collections import OrderedDict
from dataclasses import dataclass, field

NUM_REQUESTS_REMEMBERED = 4096


@dataclass(slots=True)
class Asked:
    """One request."""

    request_id: str  # the client's
    own_id: str  # the request's id in the engine
    arrived: float = field(default_factory=time.monotonic)
    seconds_lost: float = 0.0  # on replicas that were lost or handed it back, and waiting for the current one


class History:
    """The last requests."""

    def __init__(self) -> None:
        self._asked: OrderedDict[str, Asked] = OrderedDict()  # by the id in the engine
        self._own_ids: dict[str, str] = {}  # by the client's id; of several with the same one, the last one's

    def add(self, request_id: str, own_id: str) -> None:
        self._asked[own_id] = Asked(request_id, own_id)
        self._own_ids[request_id] = own_id
        if len(self._asked) > NUM_REQUESTS_REMEMBERED:
            forgotten, asked = self._asked.popitem(last=False)
            if self._own_ids[asked.request_id] == forgotten:
                del self._own_ids[asked.request_id]

    def begin_again(self, own_id: str) -> None:
        """The request's time until now was lost."""
        asked = self._asked.get(own_id)
        if asked is not None:
            asked.seconds_lost = time.monotonic() - asked.arrived

    def find(self, request_id: str) -> Asked | None:
        """By the client's id, or by that in the engine; None if it is unknown or forgotten."""
        return self._asked.get(self._own_ids.get(request_id, request_id))
