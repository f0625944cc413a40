"""Sums through memory that ranks map of each other: who has it, what goes by it, and two ranks on
one GPU.
"""

import multiprocessing
import multiprocessing.connection
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group, _unregister_process_group

from ops.tree import add_tree
from parallel.errors import GroupError
from parallel.groups import symmetric
from parallel.groups.connect import connect_directly
from parallel.groups.meeting import AbortableStore, open_store
from parallel.groups.mesh import Mesh
from tests.parallel.ranks import CPU

SIZES = [(1, 896), (7, 33), (200, 896), (2048, 896)]  # rows: one shot, one shot, two shots, all that is left to NCCL
TIMEOUT = timedelta(seconds=20)


def test_where_memory_is_not_shared_every_rank_hears_of_it_and_the_log_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = dist.HashStore()
    store.set("reason.1", "")
    store.set("machine.1", Path("/proc/sys/kernel/random/boot_id").read_text())
    assert symmetric.join(0, 2, store, store, CPU, TIMEOUT) is None
    assert [record.message for record in caplog.records] == [
        "the sums of 2 ranks go by NCCL alone: cpu has no memory that ranks map of each other"
    ]
    assert symmetric.join(1, 2, store, store, CPU, TIMEOUT) is None
    assert len(caplog.records) == 1


def test_ranks_on_several_machines_map_nothing(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("triton")
    store = dist.HashStore()
    store.set("reason.1", "")
    store.set("machine.1", "another")
    assert symmetric.join(0, 2, store, store, torch.device("cuda", 0), TIMEOUT) is None
    assert caplog.messages == ["the sums of 2 ranks go by NCCL alone: they are on several machines"]


def test_a_process_that_has_met_others_before_finds_a_new_one() -> None:
    """torch counts what it asks of a store over a process' life: here 0 and 1 in one, 6 and 7 in
    the other.
    """
    shared = dist.HashStore()
    stores = [symmetric.RendezvousStore(shared, shared) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:

        def meet(rank: int) -> tuple[list[bytes], None]:
            store, first = stores[rank], 6 * rank
            store.set(f"Memory/{first}/{rank}", bytes([255, rank]))
            return store.multi_get([f"Memory/{first}/{peer}" for peer in range(2)]), store.barrier(
                f"Memory/{first + 1}", 2
            )

        for heard, _ in pool.map(meet, range(2)):
            assert heard == [b"\xff\x00", b"\xff\x01"]


def test_torch_finds_the_ranks_by_the_name_of_a_process_group_while_they_meet() -> None:
    """As its rendezvous does since 2.11."""
    shared = dist.HashStore()
    store = symmetric.RendezvousStore(shared, shared)  # whoever waits must keep it: torch keeps what C++ has of it
    made = symmetric.make_known("squadron.test", 1, 2, store)
    try:
        group = _resolve_process_group("squadron.test")
        assert group is made
        assert (group.rank(), group.size()) == (1, 2)
        group.get_group_store().set("Memory/6/1", "here")
        assert shared.get("Memory/0/1") == b"here"
    finally:
        _unregister_process_group("squadron.test")


def test_a_rank_that_cannot_map_leaves_no_name_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(symmetric, "_names", iter(["left"]))
    shared = dist.HashStore()
    memory, reason = symmetric._map(0, 2, shared, shared, CPU, TIMEOUT)
    assert (memory, bool(reason)) == (None, True)
    with pytest.raises(RuntimeError, match="registered under the name"):
        _resolve_process_group("squadron.left")


def test_a_rank_that_waits_for_one_that_does_not_come_is_got_out() -> None:
    aborted, shared = threading.Event(), dist.HashStore()
    store = symmetric.RendezvousStore(AbortableStore(shared, aborted, TIMEOUT), shared)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(store.multi_get, ["Memory/3/1"]), pool.submit(store.barrier, "Memory/4", 2)]
        aborted.set()
        for waiter in waiting:
            assert isinstance(waiter.exception(), GroupError)


def rank_on_gpu(rank: int, port: int, pipe: multiprocessing.connection.Connection) -> None:
    """Adds what it is told to until it is told to wait for the other rank alone; then it is
    aborted.
    """
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    store = open_store("127.0.0.1", port, False, TIMEOUT)
    group, _ = connect_directly(Mesh(2, 1), rank, store, device, TIMEOUT, "127.0.0.1")
    has_memory = group._memory is not None
    for rows, columns in SIZES if torch.cuda.device_count() > 1 else SIZES[:3]:
        x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rank)).to(device)
        pipe.send(group.all_reduce(x).cpu())
    group.check()
    pipe.send(has_memory)
    if rank == 1:
        pipe.recv()
        return
    aborting = threading.Timer(0.5, group.abort)
    aborting.start()
    group.all_reduce(torch.ones(8, device=device))
    torch.cuda.synchronize()
    with pytest.raises(GroupError, match="aborted"):
        group.check()
    aborting.join()
    pipe.send("out")


@pytest.mark.gpu
def test_two_ranks_add_on_a_gpu_and_one_that_waits_alone_is_got_out() -> None:
    store = open_store("127.0.0.1", 0, True, TIMEOUT)
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for rank in range(2):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=rank_on_gpu, args=(rank, store.port, theirs), daemon=True))
        pipes.append(ours)
        processes[-1].start()

    def hear(rank: int) -> object:
        assert pipes[rank].poll(120), f"rank {rank} says nothing"
        return pipes[rank].recv()

    try:
        for rows, columns in SIZES if torch.cuda.device_count() > 1 else SIZES[:3]:
            parts = [torch.randn(rows, columns, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
            assert all(torch.equal(hear(rank), add_tree(parts)) for rank in range(2))
        assert [hear(rank) for rank in range(2)] == [True, True], "the sums went by NCCL"
        assert hear(0) == "out"
        pipes[1].send("go")
    finally:
        for process in processes:
            process.kill()
            process.join()


def memory_of(stopped: torch.Tensor) -> symmetric.SymmetricMemory:
    pytest.importorskip("triton")
    return symmetric.SymmetricMemory(0, torch.zeros(2, dtype=torch.int64), stopped, TIMEOUT, None)


def test_small_sums_go_by_shared_memory_and_large_ones_do_not() -> None:
    memory = memory_of(torch.zeros(1, dtype=torch.int32))
    assert memory.has_room(torch.empty(symmetric.CAPACITY_BYTES // 4, device="meta"))
    assert not memory.has_room(torch.empty(symmetric.CAPACITY_BYTES // 4 + 1, device="meta"))
