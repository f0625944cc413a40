"""Why a lane does not fit, so that not every step looks for all of its prompt in the cache."""

from engine.scheduling.block_pool import BlockPool


class Lack:
    """Of a lane that waits, or is swapped out, and whose tokens stay as they are meanwhile.

    What it needs gets less only when one of its own contents comes into use, which others then hold
    for it. If contents are evicted, or nobody holds them any more, it needs more.
    """

    def __init__(self, device: BlockPool, num_needed: int, contents: set[bytes]) -> None:
        """`num_needed`: free blocks; `contents`: those that were looked for."""
        self._device = device
        self._num_needed = num_needed
        self._contents = contents
        self._num_seen = device.num_taken_up

    def holds(self, device: BlockPool, num_free: int) -> bool:
        """Whether so many free blocks are too few, as far as can be told without looking again."""
        if device is not self._device or num_free >= self._num_needed:
            return False
        taken_up = device.taken_up_since(self._num_seen)
        if taken_up is None or not self._contents.isdisjoint(taken_up):
            return False
        self._num_seen = device.num_taken_up
        return True
