"""Whose part of the queue a request takes, before it is read."""

from starlette.types import Scope

from cluster.api.edge.middleware import presented_key
from cluster.api.keys.key_ring import KeyRing
from engine.request import NO_KEY, Share


class Shares:
    """Of a server's keys, if several share the queue."""

    def __init__(self, api_keys: KeyRing) -> None:
        self._keys = api_keys

    def __bool__(self) -> bool:
        """Whether there are any."""
        return self._keys.are_several

    def of(self, scope: Scope) -> Share:
        """Of the key that is shown."""
        key = self._keys.find(presented_key(scope["headers"])) if self else None
        return NO_KEY if key is None else key.share
