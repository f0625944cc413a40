"""Sums over ranks that read each other's memory: here processes that share it, and the kernel
interpreted.
"""

import multiprocessing
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
from ops.kernels import all_reduce as kernels
from ops.tree import add_tree
from tests.ops.kernels.where import IS_INTERPRETED

pytestmark = pytest.mark.skipif(not IS_INTERPRETED, reason="tests.parallel.test_symmetric has the GPU's")
CAPACITY = 96
SIZES = [96, 1, 33, 95]  # of successive calls, more of them than there are halves of a buffer
SECONDS = 120


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are interpreted one after the other, each of them waiting for its like."""
    monkeypatch.setattr(kernels, "PROGRAMS", 2)
    monkeypatch.setattr(kernels, "BLOCK", 16)


@pytest.fixture
def fork() -> Iterator[Callable[..., list[multiprocessing.Process]]]:
    """Starts a process a rank, which inherits memory at its address; ends those that have not
    ended.
    """
    started: list[multiprocessing.Process] = []
    context = multiprocessing.get_context("fork")

    def start(function: Callable[..., None], num_ranks: int, *arguments: object) -> list[multiprocessing.Process]:
        started.extend(context.Process(target=function, args=(rank, *arguments)) for rank in range(num_ranks))
        for process in started:
            process.start()
        return started

    yield start
    for process in started:
        process.kill()
        process.join()


def shared_zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype).share_memory_()


def reduce_all(rank: int, peers: Tensor, given: Tensor, results: Tensor, is_two_shot: bool) -> None:
    calls, stopped = torch.zeros(kernels.PROGRAMS, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    calls.fill_(2**31 - 2)  # counts start over
    for index, size in enumerate(SIZES):
        results[rank, index, :size] = kernels.all_reduce(
            given[rank, index, :size].clone(), peers, calls, stopped,
            rank=rank, capacity=CAPACITY, is_two_shot=is_two_shot, looks=1 << 30,
        )  # fmt: skip


@pytest.mark.parametrize("is_two_shot", [False, True], ids=["one shot", "two shots"])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_add_as_a_tree(
    fork: Callable[..., list[multiprocessing.Process]], num_ranks: int, is_two_shot: bool
) -> None:
    buffers = [shared_zeros(kernels.buffer_size(num_ranks, CAPACITY)) for _ in range(num_ranks)]
    for buffer in buffers:
        buffer[: kernels.num_flags(num_ranks)].view(torch.int32).fill_(2**31 - 2)
    peers = torch.tensor([buffer.data_ptr() for buffer in buffers])
    given = torch.randn(num_ranks, len(SIZES), CAPACITY).share_memory_()
    results = shared_zeros(num_ranks, len(SIZES), CAPACITY)
    processes = fork(reduce_all, num_ranks, peers, given, results, is_two_shot)
    for process in processes:
        process.join(SECONDS)
        assert process.exitcode == 0
    for index, size in enumerate(SIZES):
        want = add_tree(list(given[:, index, :size]))
        assert all(torch.equal(results[rank, index, :size], want) for rank in range(num_ranks)), f"call {index}"


def alone(rank: int, looks: int, stopped: Tensor) -> None:
    """Rank 0 of 2 gives something, and rank 1 never comes."""
    buffers = [torch.zeros(kernels.buffer_size(2, CAPACITY)) for _ in range(2)]
    peers = torch.tensor([buffer.data_ptr() for buffer in buffers])
    calls = torch.zeros(kernels.PROGRAMS, dtype=torch.int32)
    kernels.all_reduce(
        torch.ones(CAPACITY), peers, calls, stopped, rank=rank, capacity=CAPACITY, is_two_shot=False, looks=looks
    )


def test_a_rank_that_does_not_come_is_not_waited_for_for_ever() -> None:
    stopped = torch.zeros(1, dtype=torch.int32)
    alone(0, 300, stopped)
    assert stopped[0] == kernels.TIMED_OUT.value


def test_who_is_told_to_stop_waits_no_longer(fork: Callable[..., list[multiprocessing.Process]]) -> None:
    stopped = shared_zeros(1, dtype=torch.int32)
    (process,) = fork(alone, 1, 1 << 30, stopped)
    process.join(0.2)
    assert process.exitcode is None
    stopped.fill_(kernels.STOPPED.value)
    process.join(SECONDS)
    assert process.exitcode == 0


def test_what_makes_no_tree_or_does_not_fit_is_refused() -> None:
    calls, stopped = torch.zeros(kernels.PROGRAMS, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="2, 4 or 8 ranks are added as a balanced tree, not 3"):
        kernels.all_reduce(
            torch.ones(4), torch.zeros(3, dtype=torch.int64), calls, stopped,
            rank=0, capacity=CAPACITY, is_two_shot=False, looks=1,
        )  # fmt: skip
    with pytest.raises(ValueError, match=r"x is torch.float32 \[97\], not up to 96 contiguous float32 numbers"):
        kernels.all_reduce(
            torch.ones(97), torch.zeros(2, dtype=torch.int64), calls, stopped,
            rank=0, capacity=CAPACITY, is_two_shot=False, looks=1,
        )  # fmt: skip
