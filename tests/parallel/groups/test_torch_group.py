"""Groups of torch's: what is told of a rank that did not come."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from parallel.errors import GroupError
from parallel.groups import symmetric
from parallel.groups.torch_group import TorchGroup
from tests.parallel.ranks import CPU

TIMEOUT = timedelta(seconds=20)


def gloo_pair(memory: symmetric.SymmetricMemory, timeout: timedelta) -> list[TorchGroup]:
    """Two ranks, of which the first has memory."""
    store, groups = dist.HashStore(), {}

    def join(rank: int) -> None:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timeout
        process_group = dist.ProcessGroupGloo(store, rank, 2, options)
        groups[rank] = TorchGroup(rank, 2, CPU, process_group, None if rank else memory)

    ranks = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return [groups[rank] for rank in range(2)]


def memory_of(stopped: torch.Tensor) -> symmetric.SymmetricMemory:
    pytest.importorskip("triton")
    return symmetric.SymmetricMemory(0, torch.zeros(2, dtype=torch.int64), stopped, TIMEOUT, None)


def test_an_aborted_group_refuses_whatever_it_is_asked_and_what_it_gave_since() -> None:
    stopped = torch.zeros(1, dtype=torch.int32)
    group, _silent = gloo_pair(memory_of(stopped), timedelta(seconds=0.5))
    group.check()
    waiting = threading.Event()

    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(lambda: (waiting.set(), group.barrier()))
        waiting.wait()
        group.abort()
        assert isinstance(waiter.exception(), GroupError)
    assert stopped[0] != 0, "a kernel that waits for a rank would wait on"
    for ask in (group.check, group.barrier, lambda: group.all_reduce(torch.zeros(3))):
        with pytest.raises(GroupError, match="rank 0 of 2: the group was aborted"):
            ask()


def test_a_sum_that_a_rank_did_not_come_to_fails_the_step() -> None:
    stopped = torch.zeros(1, dtype=torch.int32)
    group, _silent = gloo_pair(memory_of(stopped), TIMEOUT)
    group.check()
    stopped[0] = 2
    with pytest.raises(GroupError, match="a rank did not come to a sum within the time limit"):
        group.check()
