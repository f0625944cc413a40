"""What changes in the store, as gateways tell it and as its two actors tell each other."""

from dataclasses import dataclass, field
from typing import NamedTuple

from cluster.api.responses.resuming.streams import StreamRecord, Told

Place = tuple[bytes, str]  # of a response: its owner and its id


class Kept(NamedTuple):
    """A response."""

    place: Place
    record: bytes
    seconds: float  # that it is still kept


@dataclass(slots=True)
class StoreChanges:
    """New streams, tokens, streams that are no longer read; new responses, and those that their
    owners deleted. What is stored after several of these does not depend on their order, but for
    tokens that come before the ones that they follow, which are dropped.
    """

    opened: dict[str, StreamRecord] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    forgotten: list[Place] = field(default_factory=list)
