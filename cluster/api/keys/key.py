"""An API key, and what its requests are allowed. Of the key itself only a digest is kept."""

import hashlib
from dataclasses import KW_ONLY, dataclass, replace

from engine.request import Request, Share

NAMESPACE_END = "\n"  # which no `cache_salt` of a request holds


@dataclass(frozen=True, slots=True)
class Key:
    """Limits that are None do not exist."""

    name: str  # for logs, errors and metrics
    digest: bytes  # SHA-256 of the key
    _: KW_ONLY
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # of prompts and answers
    max_concurrency: int | None = None  # HTTP requests that are answered at once
    priority: int = 0  # the most urgent that its requests may have
    weight: float = 1.0  # see `engine.request.Share`
    loads_adapters: bool = False  # whether it may load and unload adapters
    controls_engines: bool = False  # whether it may let engines pause and sleep
    cache_namespace: str | None = None  # keys of the same one share cached prefixes; None: this key alone

    @property
    def has_limits(self) -> bool:
        return (self.requests_per_minute, self.tokens_per_minute, self.max_concurrency) != (None, None, None)

    @property
    def share(self) -> Share:
        """Of the engine, and of what may wait."""
        return Share(self.name, self.weight)

    def own(self, request: Request) -> Request:
        """The request as one of this key: with its share of the engine, no more urgent than it may
        be, and apart from the cached prefixes of other namespaces.
        """
        namespace = f"={self.digest.hex()}" if self.cache_namespace is None else self.cache_namespace
        return replace(
            request,
            share=self.share,
            priority=max(request.priority, self.priority),
            cache_salt=f"{namespace}{NAMESPACE_END}{request.cache_salt or ''}",
        )


def digest_of(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
