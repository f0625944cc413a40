"""A step's moves of blocks. On a GPU, swaps run beside the steps, and a step waits only for those
it depends on.

Swaps go out and in, in order, in a stream of their own, after all steps before. A step waits for
swaps in, its own or earlier ones, of blocks that it reads, and for swaps out of blocks that it
writes into.
"""

import time
from typing import Any

import numpy as np
from torch import Tensor

from engine.step import ExecuteModelRequest
from engine.worker.cache.kv_cache import BLOCK_SIZE, KVCache
from engine.worker.device.device import Device, SideStream
from engine.worker.device.transfer import upload
from ops.interface import Ops


class BlockMover:
    """Does a step's moves, in the order of its contract: swap out, swap in, copy."""

    def __init__(self, cache: KVCache, ops: Ops, device: Device, side: SideStream | None = None) -> None:
        self._cache = cache
        self._ops = ops
        self._device = device.torch_device
        self._synchronize = device.synchronize
        self._side = side or device.side_stream()
        self._leaving = Awaited(cache.num_blocks)  # device blocks of swaps out that no step has waited for
        self._arriving = Awaited(cache.num_blocks)  # and of swaps in

    def move(self, request: ExecuteModelRequest) -> None:
        """What the step launches next may read and write its blocks."""
        if len(request.blocks_to_swap_out):
            mark = self._side.launch(lambda: self.swap_out(request.blocks_to_swap_out))
            self._leaving.add(request.blocks_to_swap_out[:, 0], mark)
        if len(request.blocks_to_swap_in):
            mark = self._side.launch(lambda: self._swap_in(request.blocks_to_swap_in))
            self._arriving.add(request.blocks_to_swap_in[:, 1], mark)
        self._wait(self._arriving, request.block_ids, request.blocks_to_copy)
        written = request.slot_mapping // BLOCK_SIZE
        if len(request.drafting):  # guesses are written behind the step's own tokens
            written = request.block_ids
        self._wait(self._leaving, written, request.blocks_to_copy[:, 1])
        if len(request.blocks_to_copy):
            pairs = self._upload(request.blocks_to_copy)
            for on_device, _ in self._cache.moved():
                self._ops.copy_blocks(on_device, pairs)

    def settle(self) -> None:
        """Wait until all swaps so far have been done."""
        self._side.finish()

    def _wait(self, awaited: "Awaited", *blocks: np.ndarray) -> None:
        mark = awaited.last_of(*blocks)
        if mark is not None:
            self._side.wait(mark)

    def swap_out(self, pairs: np.ndarray) -> None:
        """pairs [*, 2] int32: device block -> host block; in the current stream."""
        moved = self._upload(pairs)
        for on_device, on_host in self._cache.moved():
            self._ops.swap_blocks(on_device, on_host, moved)

    def measure_swap(self, num_blocks: int) -> float:
        """Seconds to swap the first `num_blocks` blocks out; the cache must be as new, and is so
        afterwards.
        """
        pairs = np.arange(num_blocks, dtype=np.int32)[:, None].repeat(2, axis=1)
        return min(self._time_swap_out(pairs) for _ in range(3))  # the first time makes the host's pages

    def _time_swap_out(self, pairs: np.ndarray) -> float:
        started = time.perf_counter()
        self.swap_out(pairs)
        self._synchronize()
        return time.perf_counter() - started

    def _swap_in(self, pairs: np.ndarray) -> None:
        moved = self._upload(pairs)
        for on_device, on_host in self._cache.moved():
            self._ops.swap_blocks(on_host, on_device, moved)

    def _upload(self, pairs: np.ndarray) -> Tensor:
        return upload({"pairs": pairs}, self._device)["pairs"]


class Awaited:
    """Blocks that are being moved, with the marks behind their moves; none is ever more than a
    block's last one.
    """

    def __init__(self, num_blocks: int) -> None:
        self._launch_of = np.zeros(num_blocks, np.int64)  # the block's last one that was not waited for; 0: none
        self._marks: dict[int, Any] = {}
        self._num_launches = 0

    def add(self, blocks: np.ndarray, mark: Any) -> None:
        """A later mark is behind all earlier ones."""
        self._num_launches += 1
        self._launch_of[blocks] = self._num_launches
        self._marks[self._num_launches] = mark

    def last_of(self, *blocks: np.ndarray) -> Any:
        """The mark behind the moves of all these blocks, which count as waited for from now on, as
        do those before; None if there are none.
        """
        if not self._marks:
            return None
        launch = max(int(self._launch_of[each].max(initial=0)) for each in blocks)
        if not launch:
            return None
        mark = self._marks[launch]
        self._launch_of[self._launch_of <= launch] = 0
        self._marks = {number: mark for number, mark in self._marks.items() if number > launch}
        return mark
