"""What is stored of streams that clients may resume, and the store."""

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(slots=True)
class StreamRecord:
    """What is stored of a stream."""

    request: bytes  # SHA-256 of request and key: a client that reconnects must send the same
    created: int
    seed: int | None
    num_cached_tokens: int = 0
    max_tokens: int | None = None  # as fixed with the first token
    token_ids: list[int] = field(default_factory=list)
    num_events: list[int] = field(default_factory=list)  # for each token, the number of events before it
    fingerprint: str | None = None  # of the engine that it came from: stored before its first event is sent


@dataclass(frozen=True, slots=True)
class Told:
    """A stream's tokens from number `first_index` on, which come after `num_events` events."""

    request_id: str
    first_index: int
    token_ids: list[int]
    num_events: int
    num_cached_tokens: int  # of the prompt
    max_tokens: int | None


class StreamStore(Protocol):
    """Stores streams for all gateways; what it drops, or gets too late, costs time or a 404, never
    a wrong byte.
    """

    async def open(self, request_id: str, record: StreamRecord) -> None:
        """Store a stream from now on, beginning with the record."""

    def told(self, told: Told) -> None:
        """Append tokens to a stream."""

    def close(self, request_id: str) -> None:
        """The stream is no longer read; it can be resumed for a while."""

    async def find(self, request_id: str) -> StreamRecord | None:
        """The stream, if it is still stored; raises ApiError if the store does not answer."""
