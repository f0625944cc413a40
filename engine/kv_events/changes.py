"""The changes of a cache since they were last taken, in order."""

from engine.kv_events.events import CPU, GPU, AllBlocksCleared, BlockRemoved, BlockStored, Event, hash_number


class Changes:
    """Of the blocks of all tiers that an engine's own memory has."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._events: list[Event] = []

    def stored(
        self, content: bytes, parent: bytes | None, token_ids: list[int], salt: bytes, lora_name: str | None
    ) -> None:
        """The next step writes or brings the block to the device."""
        self._events.append(
            BlockStored(
                [hash_number(content)],
                None if parent is None else hash_number(parent),
                token_ids,
                self._block_size,
                None,
                GPU,
                lora_name,
                [[salt.hex()]] if salt else None,
            )
        )

    def stored_on_host(self, content: bytes) -> None:
        self._events.append(BlockStored([hash_number(content)], None, [], self._block_size, None, CPU))

    def removed(self, content: bytes, medium: str) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(last, BlockRemoved) and last.medium == medium:
            last.block_hashes.append(hash_number(content))
        else:
            self._events.append(BlockRemoved([hash_number(content)], medium))

    def cleared(self) -> None:
        self._events = [AllBlocksCleared()]

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events
