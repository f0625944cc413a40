"""Where ranks find each other."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore

from parallel.errors import GroupError
from parallel.groups.meeting import AbortableStore, open_store
from tests.listeners import IPV6_LOOPBACK, needs_ipv6


def test_no_meeting_point_is_an_error_that_names_it() -> None:
    with pytest.raises(GroupError, match=r"no meeting point at 127\.0\.0\.1:1"):
        open_store("127.0.0.1", 1, False, timedelta(seconds=1))


@needs_ipv6
def test_the_meeting_point_may_have_an_ipv6_address() -> None:
    seconds = timedelta(seconds=30)
    own = open_store(IPV6_LOOPBACK, 0, True, seconds)
    open_store(IPV6_LOOPBACK, own.port, False, seconds).set("key", "text")
    assert own.get("key") == b"text"


def test_what_one_has_set_another_gets_under_the_same_prefix() -> None:
    store = AbortableStore(HashStore(), threading.Event(), timedelta(seconds=30))
    store.under("a").set("key", "text")
    store.under("b").set("key", b"\0bytes")
    assert (store.under("a").get("key"), store.under("b").get("key")) == (b"text", b"\0bytes")


def test_who_waits_for_what_nobody_sets_is_got_out_or_gives_up() -> None:
    aborted = threading.Event()
    store = AbortableStore(HashStore(), aborted, timedelta(seconds=30))
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(store.get, "key")
        aborted.set()
        assert isinstance(waiter.exception(), GroupError)
    late = AbortableStore(HashStore(), threading.Event(), timedelta(0))
    with pytest.raises(GroupError, match="not all ranks have come: key is not set"):
        late.get("key")
