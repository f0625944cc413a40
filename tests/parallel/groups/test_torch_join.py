"""Ranks that meet over gloo; NCCL and memory that ranks map want GPUs."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event

import pytest
import torch
from torch._C._distributed_c10d import HashStore, PrefixStore, Store

from parallel.groups.meeting import AbortableStore
from parallel.groups.torch_group import TorchGroup
from parallel.groups.torch_join import join
from tests.parallel.ranks import CPU


def join_one(rank: int, size: int, store: Store, seconds: float = 20.0) -> TorchGroup:
    timeout = timedelta(seconds=seconds)
    meeting = AbortableStore(store, Event(), timeout).under("meeting")
    return join(rank, size, meeting, PrefixStore("ranks", store), CPU, timeout, "127.0.0.1", adds=True)


def test_ranks_meet_and_add_in_the_order_of_the_tree() -> None:
    store = HashStore()
    parts = torch.randn(4, 1000)
    with ThreadPoolExecutor(4) as pool:
        groups = list(pool.map(lambda rank: join_one(rank, 4, store), range(4)))
        assert [(group.rank, group.size, group.is_capturable) for group in groups] == [
            (rank, 4, False) for rank in range(4)
        ]
        sums = list(pool.map(lambda group: group.all_reduce(parts[group.rank].clone()), groups))
    assert all(torch.equal(each, (parts[0] + parts[1]) + (parts[2] + parts[3])) for each in sums)


def test_a_rank_does_not_wait_for_another_beyond_the_time_limit() -> None:
    with pytest.raises(RuntimeError, match=r"(?i)time"):
        join_one(0, 2, HashStore(), seconds=0.5)
