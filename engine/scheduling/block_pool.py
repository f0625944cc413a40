"""One device's blocks: reference counts, the order in which free ones are reused, and the prefix
index.
"""

from collections import OrderedDict, deque
from itertools import islice

from engine.errors import SquadronError
from engine.kv_events.beginnings import Beginnings
from engine.kv_events.changes import Changes
from engine.kv_events.events import CPU
from engine.scheduling.tiers.block_lives import BlockLives

REMEMBERED = 4096  # contents that came into use: what was filled in some dozens of steps


class OutOfBlocks(SquadronError):
    """No free block is left; the scheduler preempts a sequence."""


class BlockPool:
    """Blocks are numbers. A free block keeps its contents, and its place in the prefix index, until
    it is reused.

    Free blocks are reused in the order they were freed (LRU), those without an indexed content
    first.
    """

    def __init__(
        self,
        num_blocks: int,
        first: int = 0,
        changes: Changes | None = None,
        medium: str = "",
        beginnings: Beginnings | None = None,
    ) -> None:
        """Blocks first..num_blocks - 1; on a device the null block 0 is never allocated, so `first`
        is 1. `changes`, `beginnings`: get what is removed from the index, if anybody wants to know.
        """
        self.lives = BlockLives(num_blocks)
        self._changes, self._medium, self._beginnings = changes, medium, beginnings
        self.num_blocks = num_blocks
        self.first = first
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(first, num_blocks))
        self._references = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._index: dict[bytes, int] = {}
        self._num_cached = 0  # free blocks with an indexed content
        self._taken_up: deque[bytes] = deque(maxlen=REMEMBERED)  # the last ones of `num_taken_up`
        self.num_taken_up = 0  # contents that came into use: were entered, or shared where nobody held them

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_usable(self) -> int:
        return self.num_blocks - self.first

    @property
    def num_blank(self) -> int:
        """Free blocks without an indexed content: as long as there are some, nothing is lost."""
        return len(self._free) - self._num_cached

    def references(self, block: int) -> int:
        return self._references[block]

    def allocate(self) -> int:
        """A block with undefined contents and one reference; raises OutOfBlocks."""
        if not self._free:
            raise OutOfBlocks(f"all {self.num_usable} blocks are in use")
        block, _ = self._free.popitem(last=False)
        self._references[block] = 1
        content = self._hash_of[block]
        if block % self.lives.stride == 0:
            self.lives.allocated(block, evicts=content is not None)
        if content is not None:
            self._hash_of[block] = None
            del self._index[content]
            self._num_cached -= 1
            self._tell_removed(content)
        return block

    def share(self, block: int) -> None:
        """Add a reference to a used block, or to a free one whose contents are reused."""
        if self._references[block] == 0:
            del self._free[block]
            content = self._hash_of[block]
            if content is not None:
                self._num_cached -= 1
                self._take_up(content)
        self._references[block] += 1

    def release(self, block: int) -> None:
        """Drop a reference; the last one frees the block."""
        assert self._references[block] > 0, f"block {block} is released more often than it was taken"
        self._references[block] -= 1
        if self._references[block] == 0:
            self._free[block] = None
            if self._hash_of[block] is None:
                self._free.move_to_end(block, last=False)
            else:
                self._num_cached += 1

    def register(self, block: int, content: bytes) -> bool:
        """Make a full block that is in use findable by its content hash, unless an equal one is
        already; whether it is now.
        """
        if self._hash_of[block] is not None or content in self._index:
            return False
        self._hash_of[block] = content
        self._index[content] = block
        self._take_up(content)
        if self._changes is not None and self._medium == CPU:  # on the device it is told with its tokens
            self._changes.stored_on_host(content)
        return True

    def forget(self, content: bytes) -> None:
        """Remove this content from the index; holders keep the block."""
        block = self._index.pop(content, None)
        if block is not None:
            self._hash_of[block] = None
            if self.is_free(block):
                self._free.move_to_end(block, last=False)
                self._num_cached -= 1
            self._tell_removed(content)

    def taken_up_since(self, number: int) -> list[bytes] | None:
        """The contents that came into use since `num_taken_up` was that; None if they are not
        remembered.
        """
        count = self.num_taken_up - number
        return None if count > REMEMBERED else list(islice(reversed(self._taken_up), count))

    def lookup(self, content: bytes) -> int | None:
        return self._index.get(content)

    def content_of(self, block: int) -> bytes | None:
        """What the block is found by."""
        return self._hash_of[block]

    def indexed(self, most: int) -> list[int]:
        """The blocks whose content can be found, those entered first if there are more."""
        return list(islice(self._index.values(), most))

    def is_free(self, block: int) -> bool:
        return self._references[block] == 0

    def _tell_removed(self, content: bytes) -> None:
        if self._changes is not None:
            self._changes.removed(content, self._medium)
        if self._beginnings is not None:
            self._beginnings.removed(content)

    def _take_up(self, content: bytes) -> None:
        self._taken_up.append(content)
        self.num_taken_up += 1

    def check(self, users: dict[int, int]) -> None:
        """Assert that `users` (block -> how many tables name it) is all there is; for tests."""
        counted = {block: count for block, count in enumerate(self._references) if count}
        assert counted == users, f"references {counted} differ from users {users}"
        assert len(self._free) + len(counted) == self.num_usable
        assert self._num_cached == sum(self._hash_of[block] is not None for block in self._free)
        assert all(self._hash_of[block] == content for content, block in self._index.items())
