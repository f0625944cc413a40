"""A rank's host blocks go to files and come back, as they were."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.offload.block_files import BlockFiles, Folder
from engine.step import ExecuteModelRequest
from engine.worker.cache.kv_cache import CacheShape, KVCache, make_cache
from engine.worker.cache.readers import NUM_OF_ONE
from engine.worker.cache.shelf_mover import ShelfMover
from engine.worker.device.cpu import CpuDevice
from tests.engine.worker.steps import make_step

SHAPE = CacheShape(num_layers=3, num_kv_heads=2, head_dim=8, dtype=torch.bfloat16)
CONTENT, OTHER = bytes(range(16)), bytes(range(1, 17))


def files_of(slot: int, content: bytes) -> np.ndarray:
    return np.array([[slot, *np.frombuffer(content, np.int32)]], np.int32)


def make_mover(folder: Path) -> tuple[KVCache, ShelfMover, list[str]]:
    cache, settled = make_cache(SHAPE, 2, 4, CpuDevice()), []
    files = BlockFiles(Folder(str(folder)), "layout", 0)
    return cache, ShelfMover(files, cache, lambda: settled.append("settled")), settled


def awaiting(step: int, **changes: object) -> ExecuteModelRequest:
    return replace(make_step(step, []), awaits_fetches=True, **changes)


def fetched(mover: ShelfMover, count: int) -> list[list[int]]:
    """What steps that only wait bring."""
    found: list[list[int]] = []
    while len(found) < count:
        mover.take(awaiting(2))
        found += mover.take_fetched().tolist()
    return sorted(found)


def test_a_block_comes_back_in_every_layer_and_with_its_tokens(tmp_path: Path) -> None:
    cache, mover, settled = make_mover(tmp_path)
    cache.host_memory.copy_(torch.randint(0, 256, cache.host_memory.shape, dtype=torch.uint8))
    cache.host_token_ids.copy_(torch.arange(64).view(4, 16))
    mover.take(replace(make_step(1, []), blocks_to_store=files_of(2, CONTENT)))
    cache.host_token_ids[2] = 0  # the next step may write into it
    mover.flush()
    mover.take(awaiting(2, blocks_to_fetch=np.concatenate((files_of(0, CONTENT), files_of(1, OTHER)))))
    assert fetched(mover, 2) == [[0, 1], [1, 0]]
    assert settled == ["settled"] * 2
    assert cache.host_token_ids[0].tolist() == list(range(32, 48))
    for keys, values in cache.host:
        for tensor in (keys, values):
            assert torch.equal(tensor[0].view(torch.uint8), tensor[2].view(torch.uint8))
            assert not torch.equal(tensor[0].view(torch.uint8), tensor[1].view(torch.uint8))
    assert not len(mover.take_fetched()), "each is told once"


def test_the_host_block_bytes_are_the_cache_shapes(tmp_path: Path) -> None:
    cache, _, _ = make_mover(tmp_path)
    assert cache.host_block_bytes == SHAPE.block_bytes + 4 * 16 == len(cache.host_bytes(1))


def test_what_another_epoch_fetched_is_not_told(tmp_path: Path) -> None:
    _, mover, _ = make_mover(tmp_path)
    mover.take(awaiting(1, blocks_to_fetch=files_of(0, CONTENT)))
    mover.take(replace(make_step(0, []), epoch=1))
    assert not len(mover.take_fetched())


def test_a_read_that_hangs_holds_up_no_other_epoch(tmp_path: Path) -> None:
    class Hanging(BlockFiles):
        def read(self, content: bytes, num_bytes: int, address: str = "") -> bytes:
            if content == CONTENT:
                is_reading.set()
                may_end.wait()
            return b"x" * num_bytes

    is_reading, may_end = threading.Event(), threading.Event()
    cache = make_cache(SHAPE, 2, 4, CpuDevice())
    mover = ShelfMover(Hanging(Folder(str(tmp_path)), "layout", 0), cache, lambda: None)
    mover.take(replace(make_step(1, []), blocks_to_fetch=files_of(0, CONTENT)))
    is_reading.wait()
    mover.take(replace(make_step(0, []), epoch=1, blocks_to_fetch=files_of(1, OTHER)))
    found: list[list[int]] = []
    while not found:
        mover.take(awaiting(1, epoch=1))
        found = mover.take_fetched().tolist()
    may_end.set()
    mover._readers._threads.shutdown()
    assert found == [[1, 1]] and not len(mover.take_fetched())
    assert cache.host_token_ids.any(1).tolist() == [False, True, False, False], "its block is another's by now"


def test_a_read_that_fails_unforeseen_is_answered(tmp_path: Path) -> None:
    """Of what is not answered the driver believes that nothing comes from files any more."""

    class Failing(BlockFiles):
        def read(self, content: bytes, num_bytes: int, address: str = "") -> bytes:
            if content == CONTENT:
                raise MemoryError
            return b"x" * num_bytes

    mover = ShelfMover(Failing(Folder(str(tmp_path)), "layout", 0), make_cache(SHAPE, 2, 4, CpuDevice()), lambda: None)
    mover.take(awaiting(1, blocks_to_fetch=np.concatenate((files_of(0, CONTENT), files_of(1, OTHER)))))
    mover._readers._threads.shutdown()
    assert sorted(mover.take_fetched().tolist()) == [[0, 0], [1, 1]]
    assert mover._num_reading == 0


def test_what_another_epoch_still_waits_to_read_is_not_read(tmp_path: Path) -> None:
    """Its files would keep this epoch's from being read."""

    class Counting(BlockFiles):
        def read(self, content: bytes, num_bytes: int, address: str = "") -> bytes:
            may_end.wait()
            read.append(content)
            return b"x" * num_bytes

    may_end, read = threading.Event(), list[bytes]()
    mover = ShelfMover(Counting(Folder(str(tmp_path)), "layout", 0), make_cache(SHAPE, 2, 4, CpuDevice()), lambda: None)
    try:
        mover.take(replace(make_step(1, []), blocks_to_fetch=np.concatenate([files_of(0, CONTENT)] * 40)))
        mover.take(replace(make_step(0, []), epoch=1, blocks_to_fetch=files_of(1, OTHER)))
    finally:
        may_end.set()
    found: list[list[int]] = []
    while not found:
        mover.take(awaiting(1, epoch=1))
        found = mover.take_fetched().tolist()
    assert found == [[1, 1]]
    assert read.count(CONTENT) <= NUM_OF_ONE, "those that had begun"


def test_an_answer_comes_once_all_that_is_awaited_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much of it waits."""
    monkeypatch.setattr("engine.worker.cache.shelf_mover.MAX_WRITES_WAITING", 1)
    _, mover, _ = make_mover(tmp_path)
    is_awaited, wait_for = threading.Event(), mover._changed.wait_for
    written: list[bytes] = []

    def wait(*args: Any) -> bool:
        is_awaited.set()
        return wait_for(*args)

    def write(content: bytes, _: bytes) -> None:
        is_awaited.wait()
        written.append(content)

    monkeypatch.setattr(mover._changed, "wait_for", wait)
    monkeypatch.setattr(mover._files, "write", write)
    stored = np.concatenate((files_of(2, CONTENT), files_of(1, OTHER)))
    try:
        mover.take(replace(make_step(1, []), blocks_to_store=stored, awaits_stores=True))
        mover.take_fetched()
        assert written == [CONTENT, OTHER]
    finally:
        is_awaited.set()
