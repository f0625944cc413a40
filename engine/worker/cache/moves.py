"""All moves of a step: between a rank's files, its host blocks and its device blocks."""

from engine.offload.block_files import BlockFiles
from engine.outputs import NO_FETCHED, FetchedBlocks
from engine.step import ExecuteModelRequest
from engine.worker.cache.block_mover import BlockMover
from engine.worker.cache.kv_cache import KVCache
from engine.worker.cache.shelf_mover import ShelfMover
from engine.worker.device.device import Device
from ops.interface import Ops

Files = BlockFiles  # of the third tier, if there is one


class Moves:
    """In the order of the step's contract."""

    def __init__(self, cache: KVCache, ops: Ops, device: Device, files: Files | None) -> None:
        self._blocks = BlockMover(cache, ops, device)
        self._shelf = None if files is None else ShelfMover(files, cache, self._blocks.settle)

    def move(self, request: ExecuteModelRequest) -> None:
        """What the step launches next may read and write its blocks."""
        if self._shelf is not None:
            self._shelf.take(request)
        self._blocks.move(request)

    def measure_swap(self, num_blocks: int) -> float:
        """See `BlockMover.measure_swap`."""
        return self._blocks.measure_swap(num_blocks)

    def take_fetched(self) -> FetchedBlocks:
        """Each once, from any thread."""
        return NO_FETCHED if self._shelf is None else self._shelf.take_fetched()

    def flush(self) -> None:
        """Wait until all that was stored is written."""
        if self._shelf is not None:
            self._shelf.flush()
