"""A gateway's requests without a token so far: how much waits, by API key."""

from collections.abc import Iterator
from contextlib import contextmanager

from cluster.api.arrivals import arrived
from engine.admission.queue_limits import NOTHING, Load, load_of
from engine.request import Request


class Waiting:
    """Sums over the waiting requests, updated as requests arrive and get their first token."""

    def __init__(self) -> None:
        self._loads: dict[str, Load] = {}  # by the request's id
        self.load = NOTHING  # of all of them
        self._load_of: dict[str | None, Load] = {}  # by API key

    def add(self, request: Request) -> None:
        arrived()
        self._loads[request.id] = load = load_of(request)
        self.load += load
        self._load_of[request.share.key] = self.of(request.share.key) + load

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._loads)

    def num_keys(self, beside: str | None) -> int:
        """That wait, counting the one that is named."""
        return len(self._load_of.keys() | {beside})

    def of(self, key: str | None) -> Load:
        """What waits of an API key."""
        return self._load_of.get(key, NOTHING)

    @contextmanager
    def without(self, request: Request) -> Iterator[None]:
        """Do not count a request that waits for other engines, while this context is open."""
        was_counted = request.id in self._loads
        self.remove(request)
        try:
            yield
        finally:
            if was_counted:
                self.add(request)

    def remove(self, request: Request) -> None:
        """Stop counting the request; a second call has no effect."""
        load = self._loads.pop(request.id, None)
        if load is not None:
            self.load -= load
            key = request.share.key
            self._load_of[key] -= load
            if not self._load_of[key].num_seqs:
                del self._load_of[key]
