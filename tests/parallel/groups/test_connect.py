"""How ranks get their groups: by where they are and what they compute on."""

import multiprocessing
import multiprocessing.connection
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from parallel.errors import GroupError
from parallel.groups.connect import connect
from parallel.groups.group import Group
from parallel.groups.meeting import open_store
from parallel.groups.mesh import Mesh
from parallel.groups.staged_group import StagedGroup
from tests.parallel.ranks import CPU


def test_two_processes_meet_and_one_outlives_the_other() -> None:
    timeout = timedelta(seconds=30)
    store = open_store("127.0.0.1", 0, True, timeout)
    context = multiprocessing.get_context("spawn")
    parent, child = context.Pipe()
    process = context.Process(target=_other_process, args=(store.port, child))
    process.start()
    tp, _ = connect(Mesh(2, 1), 0, store, CPU, timeout, "127.0.0.1")
    assert tp.all_reduce(torch.full((3,), 2.0)).tolist() == [5.0] * 3
    assert parent.recv() == [5.0] * 3
    process.kill()
    process.join()
    with pytest.raises(GroupError, match="rank 0 of 2"):
        tp.all_reduce(torch.zeros(3))


def _other_process(port: int, pipe: multiprocessing.connection.Connection) -> None:
    timeout = timedelta(seconds=30)
    store = open_store("127.0.0.1", port, False, timeout)
    tp, _ = connect(Mesh(2, 1), 1, store, CPU, timeout, "127.0.0.1")
    pipe.send(tp.all_reduce(torch.full((3,), 3.0)).tolist())
    pipe.recv()  # until killed


def test_ranks_that_share_a_gpu_exchange_through_the_hosts_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL refuses them."""
    one_gpu = SimpleNamespace(uuid="GPU-1")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: one_gpu)
    store, timeout = HashStore(), timedelta(seconds=30)

    def join(rank: int) -> Group:
        return connect(Mesh(2, 1), rank, store, torch.device("cuda", 0), timeout, "127.0.0.1")[0]

    with ThreadPoolExecutor(2) as pool:
        groups = list(pool.map(join, range(2)))
        assert all(isinstance(group, StagedGroup) for group in groups)
        list(pool.map(lambda group: group.barrier(), groups))


def test_a_rank_alone_needs_no_store() -> None:
    tp, pp = connect(Mesh(1, 1), 0, None, CPU, timedelta(seconds=1), "127.0.0.1")
    assert (tp.size, pp.size) == (1, 1)
