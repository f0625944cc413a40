"""Where ranks of several nodes listen, as the kernel tells."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from torch._C._distributed_c10d import HashStore, PrefixStore

from parallel.groups.meeting import open_store
from parallel.groups.torch_join import gloo_group
from tests.listeners import listeners_of

NODE = "127.0.0.2"  # an address that is not what anybody would take by default
TIMEOUT = timedelta(seconds=20)


def test_the_store_and_gloo_listen_on_the_nodes_address_alone() -> None:
    before = set(listeners_of(os.getpid()))
    store = open_store(NODE, 0, True, TIMEOUT)
    at_store = set(listeners_of(os.getpid())) - before
    assert [(each.host, each.port) for each in at_store] == [(NODE, store.port)]
    ranks = PrefixStore("ranks", HashStore())
    with ThreadPoolExecutor(2) as pool:
        groups = list(pool.map(lambda rank: gloo_group(ranks, rank, 2, TIMEOUT, NODE), range(2)))
    of_gloo = set(listeners_of(os.getpid())) - before - at_store
    assert len(groups) == 2 and of_gloo and {each.host for each in of_gloo} == {NODE}
