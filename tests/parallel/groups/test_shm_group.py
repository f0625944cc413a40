import multiprocessing
import multiprocessing.connection
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pytest
import torch
import torch.distributed as dist

from ops.cpu import unavailable_reason
from ops.tree import add_tree
from parallel.errors import GroupError
from parallel.groups import shm_group
from parallel.groups.meeting import open_store
from parallel.groups.shm_group import ShmGroup

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))

Result = TypeVar("Result")


def run_ranks(size: int, function: Callable[[ShmGroup], Result], seconds: float = 20) -> list[Result]:
    """What function(group) returns on each rank, ranks being threads."""
    store = dist.HashStore()

    def run(rank: int) -> Result:
        group = shm_group.join(rank, size, store, timedelta(seconds=seconds))
        assert group is not None
        with torch.inference_mode():
            return function(group)

    with ThreadPoolExecutor(size, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return [future.result() for future in [pool.submit(run, rank) for rank in range(size)]]


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("count", [0, 1, 17, 4000, 70_001])
def test_all_reduce_adds_in_tree_order(size: int, count: int) -> None:
    parts = torch.randn(size, count)
    want = add_tree(list(parts))
    for got in run_ranks(size, lambda group: [group.all_reduce(parts[group.rank]) for _ in range(5)]):
        assert all(torch.equal(each, want) for each in got)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("shape", [(3, 5), (0, 4), (40, 3000)])
@pytest.mark.parametrize("dim", [0, 1])
def test_all_gather(size: int, shape: tuple[int, int], dim: int) -> None:
    parts = torch.randn(size, *shape).bfloat16()
    for got in run_ranks(size, lambda group: group.all_gather(parts[group.rank], dim)):
        assert torch.equal(got, torch.cat(list(parts), dim))


def test_messages_wait_for_nobody_and_keep_their_order() -> None:
    messages = [torch.randn(rows, 256) for rows in (1, 700, 3, 900, 0, 50)] * 3
    small = messages[:4]

    def exchange(group: ShmGroup) -> list[torch.Tensor]:
        if group.rank == 0:
            for message in small:
                group.send(message, 1)
            group.barrier()  # rank 1 has not asked for anything yet
            for message in messages:
                group.send(message, 1)
            return small + messages
        group.barrier()
        return [group.recv(tuple(message.shape), torch.float32, 0) for message in small + messages]

    sent, got = run_ranks(2, exchange)
    assert all(torch.equal(left, right) for left, right in zip(sent, got, strict=True))


def test_a_message_larger_than_the_ring() -> None:
    message = torch.randn(5_000_000)

    def exchange(group: ShmGroup) -> torch.Tensor:
        if group.rank == 1:
            return group.recv((5_000_000,), torch.float32, 0)
        group.send(message, 1)
        return message

    assert torch.equal(*run_ranks(2, exchange))


def test_messages_go_to_the_next_rank_only() -> None:
    def send_back(group: ShmGroup) -> None:
        with pytest.raises(AssertionError, match="sends to the next rank"):
            group.send(torch.zeros(1), (group.rank + 2) % 3)
        with pytest.raises(AssertionError, match="hears the one before"):
            group.recv((1,), torch.float32, (group.rank + 1) % 3)

    run_ranks(3, send_back)


def test_a_rank_that_does_not_answer_is_an_error_in_time() -> None:
    def wait_for_the_other(group: ShmGroup) -> str:
        if group.rank == 1:
            return "silent"
        for call in (group.barrier, lambda: group.recv((3,), torch.float32, 1)):
            with pytest.raises(GroupError, match=r"rank 0 of 2: rank 1 (did not answer within 0.3 s|is gone)"):
                call()
        return "told"

    assert run_ranks(2, wait_for_the_other, seconds=0.3) == ["told", "silent"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_dies_is_noticed_and_one_that_freezes_is_too(how: signal.Signals) -> None:
    seconds = 60 if how == signal.SIGKILL else 1
    store = open_store("127.0.0.1", 0, True, timedelta(seconds=30))
    context = multiprocessing.get_context("spawn")
    parent, child = context.Pipe()
    process = context.Process(target=_other_process, args=(store.port, child))
    process.start()
    group = shm_group.join(0, 2, store, timedelta(seconds=seconds))
    assert group is not None
    assert group.all_reduce(torch.full((3,), 2.0)).tolist() == parent.recv() == [5.0] * 3
    assert os.readlink(f"/proc/self/fd/{group._file}").endswith(" (deleted)")  # its name, once both have opened it
    os.kill(process.pid or 0, how)
    message = "rank 1 is gone" if how == signal.SIGKILL else "rank 1 did not answer within 1 s"
    with pytest.raises(GroupError, match=f"rank 0 of 2: {message}"):
        group.all_reduce(torch.zeros(3))
    process.kill()
    process.join()


def _other_process(port: int, pipe: multiprocessing.connection.Connection) -> None:
    store = open_store("127.0.0.1", port, False, timedelta(seconds=30))
    group = shm_group.join(1, 2, store, timedelta(seconds=30))
    assert group is not None
    pipe.send(group.all_reduce(torch.full((3,), 3.0)).tolist())
    pipe.recv()  # until killed


@pytest.fixture
def folder() -> Iterator[Path]:
    """On a file system that has files without names, which not every one of tmp_path has."""
    with tempfile.TemporaryDirectory(dir=shm_group.FOLDER) as name:
        yield Path(name)


def join_all(size: int) -> list[ShmGroup | None]:
    store = dist.HashStore()
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: shm_group.join(rank, size, store, timedelta(seconds=20)), range(size)))


def test_ranks_on_two_machines_have_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = iter(["here", "there"])
    monkeypatch.setattr(shm_group, "_machine", lambda: next(machines))
    assert join_all(2) == [None, None]


def test_ranks_that_may_not_open_each_others_memory_have_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_group, "_open_file", lambda path: None)
    assert join_all(2) == [None, None]


def test_without_room_there_is_no_group_and_nothing_stays_behind(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    asked = []

    def full(file: int, *_: int) -> None:
        asked.append(Path(f"/proc/self/fd/{file}").readlink().parent)
        raise OSError("No space left on device")

    monkeypatch.setattr(shm_group, "FOLDER", folder)
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert join_all(2) == [None, None]
    assert (asked, os.listdir(folder)) == ([folder], [])


def test_ranks_that_end_while_they_meet_leave_no_file(folder: Path) -> None:
    """Rank 0 is killed, and never comes back: no other group on its machine tidies up after it."""
    store = open_store("127.0.0.1", 0, True, timedelta(seconds=300))  # for a process that imports torch
    store.set("machine.1", shm_group._machine())
    process = multiprocessing.get_context("spawn").Process(target=_wait_for_rank_1, args=(store.port, folder))
    process.start()
    path = store.get("path").decode()
    process.kill()
    process.join()
    assert os.listdir(folder) == []
    store.set("machine.0", store.get("machine.1"))
    with pytest.raises(GroupError, match=r"the memory of rank 0, .*, cannot be opened: No such file"):
        shm_group.join(1, 2, store, timedelta(seconds=20))
    assert path.startswith("/proc/")


def _wait_for_rank_1(port: int, folder: Path) -> None:
    machine, shm_group.FOLDER = shm_group._machine(), folder
    shm_group._machine = lambda: machine
    shm_group.join(0, 2, open_store("127.0.0.1", port, False, timedelta(seconds=60)), timedelta(seconds=60))


def test_an_abort_ends_every_wait() -> None:
    def wait_in_a_ring(group: ShmGroup) -> str:
        if group.rank == 2:
            group.abort()
            return "aborted"
        with pytest.raises(GroupError, match="the group was aborted"):
            group.recv((3,), torch.float32, (group.rank + 2) % 3)
        return "told"

    assert run_ranks(3, wait_in_a_ring) == ["told", "told", "aborted"]
