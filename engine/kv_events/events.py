"""What routers are told of an engine's cache: vLLM's events, as plain tuples."""

from typing import Any, NamedTuple

GPU, CPU = "GPU", "CPU"  # media: vLLM's names, whatever the device is


class BlockStored(NamedTuple):
    """Blocks are in the cache. `token_ids` are those of all of them, in order; none on the host."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None = None
    extra_keys: list[list[str]] | None = None  # a list for each block: what else it is found by


class BlockRemoved(NamedTuple):
    block_hashes: list[int]
    medium: str


class AllBlocksCleared(NamedTuple):
    """The workers were replaced."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(NamedTuple):
    """One message's payload."""

    ts: float  # seconds since 1970
    events: list[Event]
    data_parallel_rank: int | None

    def as_arrays(self) -> tuple[Any, ...]:
        """vLLM's format: each event an array, its name first."""
        return self.ts, [(type(event).__name__, *event) for event in self.events], self.data_parallel_rank


def hash_number(content: bytes) -> int:
    """64 bits of a content hash: what routers compare."""
    return int.from_bytes(content[:8], "big")
