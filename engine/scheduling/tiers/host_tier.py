"""The second tier: the host keeps what the device may have to evict.

A block's contents are copied to the host beside the steps, some time before anything needs the
block: a step never waits for a copy. What the host has no room for, or was not copied in time, is
computed again when it is wanted.
"""

from collections.abc import Iterable

from engine.scheduling.block_pool import BlockPool
from engine.scheduling.tiers.shelf import STEPS_BEFORE_STORE, Shelf

MOVES_A_STEP = 64  # blocks each way, beside a step: what a bus carries in a few milliseconds


class HostTier:
    """Chooses what is copied, from `device` to `host`. Slots of contents that nobody uses give way,
    the oldest first; preempted requests swap into the same pool.
    """

    def __init__(self, device: BlockPool, host: BlockPool, shelf: Shelf | None, stores_a_step: int = 0) -> None:
        """`shelf`: the third tier, if it gets anything; what it is to have is on the host first.
        `stores_a_step`: what it takes.
        """
        self._device = device
        self._host = host
        self._shelf = shelf
        self._waiting: dict[int, bytes] = {}  # device block -> content, the oldest first
        self._new: dict[int, bytes] = {}  # those that the step being planned writes
        # What is copied must still be there when it is stored.
        self.moves_a_step = max(MOVES_A_STEP, min(stores_a_step, self._most_stored))
        self.num_written = 0  # contents so far
        self.num_queries = 0  # tokens that were not found on the device
        self.num_hits = 0  # tokens

    def written(self, block: int, content: bytes) -> None:
        """The step being planned writes this content, which the index has now."""
        self._waiting.pop(block, None)  # the same content may have been there before
        if self._host.num_usable:
            self._new[block] = content
            self.num_written += 1

    @property
    def _most_stored(self) -> int:
        """Blocks that may be copied by a step, and be stored by a later one."""
        return self._host.num_usable // (STEPS_BEFORE_STORE + 2)

    def leave(self, contents: Iterable[bytes], shelf: Shelf, *, apart: bool) -> None:
        """The engine is to end: have `shelf` get these, as far as they are here, in their order,
        and what is written from now on, before anything else. `apart`: see `Shelf.leave`.
        """
        self.moves_a_step = max(min(MOVES_A_STEP, self._most_stored), 1)
        self._shelf = shelf
        shelf.leave(self.moves_a_step, apart=apart)
        self._waiting.clear()
        self._new.clear()
        for content in contents:
            slot, block = self._host.lookup(content), self._device.lookup(content)
            if slot is not None:
                shelf.saved(slot, content)
            elif block is not None:
                self.written(block, content)

    def may_save(self, block: int) -> bool:
        """Whether the step being planned may begin with a copy of it."""
        return block in self._waiting

    def save(self) -> list[tuple[int, int]]:
        """Moves from device to host for the step being planned, to be done before it writes; its
        own blocks come later. Without a third tier none, while half of the device's blocks have
        never been needed.
        """
        moves: list[tuple[int, int]] = []
        if self._shelf is not None or 2 * self._device.num_blank < self._device.num_usable:
            while self._waiting and self._host.num_free and len(moves) < self.moves_a_step:
                block, content = next(iter(self._waiting.items()))
                del self._waiting[block]
                if self._device.content_of(block) == content and self._host.lookup(content) is None:
                    moves.append((block, self._keep(content)))
        self._waiting |= self._new
        self._new.clear()
        return moves

    @property
    def has_unsaved(self) -> bool:
        """Of what the third tier is to have."""
        return self._shelf is not None and bool(self._waiting) and self._host.num_free > 0

    @property
    def num_done(self) -> int:
        """Of `num_written`, in their order: those that the third tier has been given, or will not
        be.
        """
        num_unstored = 0 if self._shelf is None else self._shelf.num_unstored
        return self.num_written - len(self._new) - len(self._waiting) - num_unstored

    def _keep(self, content: bytes) -> int:
        """A slot that is found by the content, and gives way when others are needed."""
        slot = self._host.allocate()
        self._host.register(slot, content)
        self._host.release(slot)
        if self._shelf is not None:
            self._shelf.saved(slot, content)
        return slot
