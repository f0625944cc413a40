"""Ranks that wait for each other, part and meet again."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from engine.worker.ranks import LOOPBACK, Ranks, join_store, open_store
from parallel.errors import GroupError
from parallel.groups import shm_group
from parallel.groups.mesh import Mesh

CPU = torch.device("cpu")


def test_one_rank_of_the_last_stage_speaks() -> None:
    ranks = [Ranks(Mesh(2, 3), rank, CPU) for rank in range(6)]
    assert [each.speaks for each in ranks] == [False] * 4 + [True, False]
    assert [each.stage.rank for each in ranks] == [0, 0, 1, 1, 2, 2]


def test_ranks_that_have_parted_meet_at_another_store() -> None:
    ranks = [Ranks(Mesh(2, 1), rank, CPU) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            store = open_store(LOOPBACK)
            stores = [store, join_store(LOOPBACK, store.port)]
            list(pool.map(lambda rank, store: rank.join(store, LOOPBACK), ranks, stores))
            sums = pool.map(lambda rank: rank.tp.all_reduce(torch.ones(3)), ranks)
            assert [each.tolist() for each in sums] == [[2.0] * 3] * 2
            for rank in ranks:
                rank.check()
                rank.leave()


def test_who_waits_for_a_rank_that_does_not_come_is_got_out() -> None:
    rank, store = Ranks(Mesh(2, 1), 0, CPU), open_store(LOOPBACK)
    waiting = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(lambda: (waiting.set(), rank.join(store, LOOPBACK)))
        waiting.wait()
        rank.abort()
        error = waiter.exception()
    assert isinstance(error, GroupError)
    assert rank.may_have_caused(error)
    assert not rank.may_have_caused(ValueError())


@pytest.mark.parametrize("transport", ["shared memory", "gloo"])
def test_who_waits_for_a_rank_that_has_failed_is_told(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: neither side's time limit ends this."""
    if transport == "gloo":
        monkeypatch.setattr(shm_group, "join", lambda *_: None)
    ranks, store = [Ranks(Mesh(1, 2), rank, CPU) for rank in range(2)], open_store(LOOPBACK)
    waiting = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rank, store: rank.join(store, LOOPBACK), ranks, [store, join_store(LOOPBACK, store.port)]))
        waiter = pool.submit(lambda: (waiting.set(), ranks[0].pp.recv((3,), torch.int32, 1)))
        waiting.wait()
        ranks[1].fail()
        assert isinstance(waiter.exception(timeout=60), GroupError)
        with pytest.raises(GroupError):
            ranks[1].pp.barrier()
        for rank in ranks:
            rank.leave()
        store = open_store(LOOPBACK)
        list(pool.map(lambda rank, store: rank.join(store, LOOPBACK), ranks, [store, join_store(LOOPBACK, store.port)]))
        list(pool.map(lambda rank: rank.pp.barrier(), ranks))
