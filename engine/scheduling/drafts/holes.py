"""Which blocks the draft model has not computed, though the model has: the next turn of a
conversation finds both models' keys and values in the same blocks.
"""

from engine.scheduling.block_manager import BlockManager
from engine.scheduling.sequence import Sequence

_MAX_BLOCKS = 1 << 16  # that are remembered: what is forgotten makes guesses wrong, not answers


class Holes:
    """By what the blocks hold, as they are found on any tier. Of files that another engine has
    written, nothing is known.
    """

    def __init__(self) -> None:
        self._contents: dict[bytes, None] = {}  # the oldest first

    def num_whole(self, seq: Sequence, num_blocks: int) -> int:
        """Of the sequence's first blocks, which it has found, those before the first hole."""
        for index, content in enumerate(seq.block_hashes[:num_blocks]):
            if content in self._contents:
                return index
        return num_blocks

    def leave(self, blocks: BlockManager, seq: Sequence, start: int, end: int) -> None:
        """The sequence's blocks start..end - 1 are in the prefix index without the draft's part."""
        for _, content in _found(blocks, seq, start, end):
            self._contents[content] = None
        while len(self._contents) > _MAX_BLOCKS:
            del self._contents[next(iter(self._contents))]

    def fill(self, blocks: BlockManager, seq: Sequence, start: int, end: int) -> None:
        """The step being planned computes the draft's part of the sequence's blocks start..end - 1;
        not that of their copies on other tiers, nor of those that are made before it.
        """
        if not self._contents:
            return
        for block, content in _found(blocks, seq, start, end):
            if not blocks.has_copy(content) and not blocks.host_tier.may_save(block):
                self._contents.pop(content, None)


def _found(blocks: BlockManager, seq: Sequence, start: int, end: int) -> list[tuple[int, bytes]]:
    """Those of the blocks that others find, and not equal ones in their place; with contents."""
    own = zip(seq.block_table[start:end], seq.block_hashes[start:end], strict=False)
    return [(block, content) for block, content in own if blocks.device.lookup(content) == block]
