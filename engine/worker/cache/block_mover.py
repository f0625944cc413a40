"""A step's moves of blocks. On a GPU, swaps run beside the steps, and a step waits only for those
it depends on.

Swaps go out and in, in order, in a stream of their own, after all steps before. A step waits for
its swaps in, since it reads those blocks. It waits for a swap out, its own or an earlier one, only
if it writes into a block that is leaving.
"""

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
        self._side = side or device.side_stream()
        self._leaving: set[int] = set()  # device blocks of swaps out that no step has waited for
        self._left: Any = None  # the mark behind them

    def move(self, request: ExecuteModelRequest) -> None:
        """What the step launches next may read and write its blocks."""
        if len(request.blocks_to_swap_out):
            self._left = self._side.launch(lambda: self.swap_out(request.blocks_to_swap_out))
            self._leaving.update(request.blocks_to_swap_out[:, 0].tolist())
        if len(request.blocks_to_swap_in):
            self._side.wait(self._side.launch(lambda: self._swap_in(request.blocks_to_swap_in)))
            self._leaving.clear()  # the swaps in came after them
        if self._leaving and not self._leaving.isdisjoint(_written(request)):
            self._side.wait(self._left)
            self._leaving.clear()
        if len(request.blocks_to_copy):
            pairs = self._upload(request.blocks_to_copy)
            for on_device, _ in self._cache.moved():
                self._ops.copy_blocks(on_device, pairs)

    def swap_out(self, pairs: np.ndarray) -> None:
        """pairs [*, 2] int32: device block -> host block; in the current stream."""
        moved = self._upload(pairs)
        for on_device, on_host in self._cache.moved():
            self._ops.swap_blocks(on_device, on_host, moved)

    def _swap_in(self, pairs: np.ndarray) -> None:
        moved = self._upload(pairs)
        for on_device, on_host in self._cache.moved():
            self._ops.swap_blocks(on_host, on_device, moved)

    def _upload(self, pairs: np.ndarray) -> Tensor:
        return upload({"pairs": pairs}, self._device)["pairs"]


def _written(request: ExecuteModelRequest) -> set[int]:
    """The device blocks that the step writes into, but for those it swaps in."""
    return {*np.unique(request.slot_mapping // BLOCK_SIZE).tolist(), *request.blocks_to_copy[:, 1].tolist()}
