"""How many blocks of cache there is room for."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import ops
from engine.config import DEFAULT_CPU_CACHE_BYTES, EngineConfig
from engine.errors import InvalidConfig
from engine.worker.cache.room import CacheRoom, no_room_advice
from engine.worker.device.cpu import CpuDevice
from engine.worker.graphs.graphs import BYTES_PER_GRAPH
from engine.worker.worker import Worker
from tests.engine.worker.on_demo import MODEL, make_config

MIB = 1 << 20


def test_blocks_by_memory(loaded: Worker) -> None:
    block_bytes = 2 * 4 * 2 * 16 * 64 * 4
    assert loaded.determine_num_available_blocks() == (
        DEFAULT_CPU_CACHE_BYTES // block_bytes,
        int(0.01 * (1 << 30)) // block_bytes,
    )


def test_blocks_hold_the_longest_sequence_at_least(loaded: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.config.fields.DEFAULT_CPU_CACHE_BYTES", 1)
    assert loaded.determine_num_available_blocks()[0] == 2048 // 16 + 1


def test_blocks_by_configuration() -> None:
    block_bytes = 2 * 4 * 2 * 16 * 64 * 4
    by_bytes = Worker(make_config(kv_cache_memory_bytes=10 * block_bytes + 1, swap_space=0))
    assert by_bytes.determine_num_available_blocks() == (10, 0)
    assert by_bytes.initialize_cache(10, 0) == 0.0
    assert Worker(make_config(num_gpu_blocks_override=7)).determine_num_available_blocks()[0] == 7
    with pytest.raises(InvalidConfig, match="two blocks take"):
        Worker(make_config(kv_cache_memory_bytes=block_bytes)).determine_num_available_blocks()


@pytest.mark.gpu
def test_a_worker_on_a_gpu_says_whether_it_uses_graphs_and_leaves_them_room() -> None:
    num_blocks = {}
    said_of = {False: "CUDA graphs for decode and small mixed steps", True: "no CUDA graphs (enforce_eager)"}
    for enforce_eager, said in said_of.items():
        worker = Worker(EngineConfig.create(model=MODEL, device="cuda", enforce_eager=enforce_eager))
        assert said in worker.report
        num_blocks[enforce_eager] = worker.determine_num_available_blocks()[0]
    assert 0 < num_blocks[False] < num_blocks[True]


@pytest.mark.gpu
def test_a_worker_that_meets_others_again_has_room_for_the_cache_it_has() -> None:
    worker = Worker(EngineConfig.create(model=MODEL, device="cuda"))
    num_blocks = worker.determine_num_available_blocks()
    worker.initialize_cache(*num_blocks)
    worker.rejoin(None, "127.0.0.1")
    assert worker.determine_num_available_blocks() == num_blocks


def test_the_advice_names_what_would_do() -> None:
    gib = 1 << 30
    assert no_room_advice(gib, 80 * gib, 0.92) == "gpu_memory_utilization=0.94 would do"
    assert no_room_advice(10 * gib, 80 * gib, 0.92).startswith("raise tensor_parallel_size")


class Gpu(CpuDevice):
    """A device of 1 GiB, a tenth of it others'. Prefill takes 40 MiB, a decode step 20 and a mixed
    one 30 the first time, and twice as much from then on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.memory = self
        self.peaks = [40, 20, 30, 80, 40, 60]

    def free_and_total(self) -> tuple[int, int]:
        return 600 * MIB, 1024 * MIB

    def allocated(self) -> int:
        return 200 * MIB

    def reserved(self) -> int:
        return 324 * MIB

    def release(self) -> None:
        return

    def peak(self, work: Callable[[], object]) -> int:
        work()
        return self.peaks.pop(0) * MIB


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_the_cache_gets_what_weights_others_and_the_largest_steps_leave(backend: str) -> None:
    if (reason := ops.unavailable_reason(backend, torch.device("cpu"))) is not None:
        pytest.skip(reason)
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 64}
    config = EngineConfig.create(
        model=MODEL, dtype="float32", device="cpu", ops_backend=backend, gpu_memory_utilization=0.75, **sizes
    )
    room = CacheRoom(replace(Worker(config)._shard, device=Gpu()))
    num_bytes = (768 - 200 - 40 - 100) * MIB
    if backend == "cpu":  # whose steps are captured: of 1, 2 and 4 rows, layers, three kinds of draws,
        # penalties and logprobs; mixed ones of 16, 32 and 64
        num_bytes -= 30 * MIB + (3 * 6 + 3) * BYTES_PER_GRAPH
        num_bytes -= 64 * 256 * 4 + (4 + 1) * 4 * 4  # buffers of 64 rows, and of 4 blocks for each sequence
        num_bytes -= 4 * 64 * 4  # and of the tokens of 4 rows
    num_blocks = num_bytes // (2 * 4 * 2 * 16 * 64 * 4)
    assert room.num_blocks()[0] == num_blocks
    assert room.num_blocks()[0] == num_blocks, "what was there before the cache counts"
