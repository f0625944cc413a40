"""A rank's part of the third tier: its host blocks go to files, and come back, beside the steps."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import zip_longest

import numpy as np

from engine.offload.block_files import BlockFiles
from engine.outputs import NO_FETCHED
from engine.step import ExecuteModelRequest
from engine.worker.cache.kv_cache import KVCache
from engine.worker.cache.readers import Readers

MAX_WRITES_WAITING = 256  # blocks copied and not written yet; more are dropped, where files are slow and nobody waits
STORE_SECONDS = 5.0  # that a step waits for what is written
AWAIT_SECONDS = 0.2  # of a step that has nothing else to do


class ShelfMover:
    """`take` is the thread's that launches steps, `take_fetched` any one's. A host block is the
    driver's to leave alone while it is fetched.
    """

    def __init__(self, files: BlockFiles, cache: KVCache, settle: Callable[[], None]) -> None:
        """settle(): wait until all swaps launched so far have been done."""
        self._files, self._cache, self._settle = files, cache, settle
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="offload writer")
        self._readers = Readers()
        self._changed = threading.Condition()  # guards all below
        self._num_writing = 0
        self._are_awaited = False  # writes
        self._num_reading = 0  # of this epoch's blocks
        self._num_filling = 0  # of any's
        self._fetched: list[tuple[int, bool]] = []
        self._epoch = 0

    def take(self, request: ExecuteModelRequest) -> None:
        """Before the step moves any blocks: copy what it stores, and begin what it fetches."""
        if request.epoch != self._epoch:
            self._forget_epoch(request.epoch)
        if not (len(request.blocks_to_store) or len(request.blocks_to_fetch) or request.awaits_fetches):
            return
        if len(request.blocks_to_store) or len(request.blocks_to_fetch):
            self._settle()
        for slot, content in _transfers(request.blocks_to_store):
            with self._changed:
                if self._num_writing >= MAX_WRITES_WAITING and not request.awaits_stores:
                    break
                self._num_writing += 1
            self._writer.submit(self._write, content, self._cache.host_bytes(slot))
        with self._changed:
            self._are_awaited |= request.awaits_stores
        for (slot, content), address in zip_longest(_transfers(request.blocks_to_fetch), request.fetch_addresses):
            with self._changed:
                self._num_reading += 1
            place = address or ""  # empty: the folder alone
            self._readers.submit(place, partial(self._read, request.epoch, slot, content, place))
        if request.awaits_fetches:
            with self._changed:
                self._changed.wait_for(lambda: not self._num_reading or self._fetched, AWAIT_SECONDS)

    def take_fetched(self) -> np.ndarray:
        """[*, 2] int32: see `SamplerOutput.fetched`; each once. Is called for each answer to a
        step, which comes once what is awaited has been written.
        """
        if not (self._fetched or self._are_awaited):  # what comes just now goes with the next one
            return NO_FETCHED
        with self._changed:
            if self._are_awaited:
                self._changed.wait_for(lambda: not self._num_writing, STORE_SECONDS)
                self._are_awaited = self._num_writing > 0
            if not self._fetched:
                return NO_FETCHED
            fetched, self._fetched = self._fetched, []
        return np.array(fetched, np.int32)

    def flush(self) -> None:
        """Wait until everything is written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._num_writing)

    def _forget_epoch(self, epoch: int) -> None:
        """Reads of the last epoch must not reach this one's blocks. They are not waited for: who
        knows how long a filesystem takes.
        """
        with self._changed:
            self._epoch = epoch
            self._changed.wait_for(lambda: not self._num_filling)
            self._num_reading = 0
            self._fetched.clear()

    def _write(self, content: bytes, data: bytes) -> None:
        try:
            self._files.write(content, data)
        finally:
            with self._changed:
                self._num_writing -= 1
                self._changed.notify_all()

    def _read(self, epoch: int, slot: int, content: bytes, address: str) -> None:
        with self._changed:
            if epoch != self._epoch:
                return
        is_there = False
        try:
            data = self._files.read(content, self._cache.host_block_bytes, address)
            is_there = data is not None and self._fill(epoch, slot, data)
        finally:  # whatever happened: the driver waits for each
            with self._changed:
                if epoch == self._epoch:
                    self._num_reading -= 1
                    self._fetched.append((slot, is_there))
                    self._changed.notify_all()

    def _fill(self, epoch: int, slot: int, data: bytes) -> bool:
        """Unless the epoch is over; whether the block has it."""
        with self._changed:
            if epoch != self._epoch:
                return False
            self._num_filling += 1
        try:
            self._cache.fill_host(slot, data)
        finally:
            with self._changed:
                self._num_filling -= 1
                self._changed.notify_all()
        return True


def _transfers(blocks: np.ndarray) -> list[tuple[int, bytes]]:
    return [(int(row[0]), row[1:].tobytes()) for row in blocks]
