"""Tensors that another program broadcasts, over gloo."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from parallel.errors import GroupError
from parallel.given.broadcasts import SENDER, Broadcasts

HOST, CPU = "127.0.0.1", torch.device("cpu")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def meet(pool: ThreadPoolExecutor, seconds: float) -> tuple[Any, list[Broadcasts]]:
    """A sender as its program makes it, and two that receive."""
    timeout = timedelta(seconds=seconds)
    store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    joining = [pool.submit(Broadcasts, HOST, store.port, "w", rank, 3, CPU, timeout, HOST) for rank in (1, 2)]
    sender = dist.ProcessGroupGloo(dist.PrefixStore("w", store), SENDER, 3, timeout)
    return sender, [member.result() for member in joining]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_all_receive_the_same_bits_in_order(pool: ThreadPoolExecutor, dtype: str) -> None:
    sender, members = meet(pool, seconds=60)
    sent = [torch.randn(shape).to(getattr(torch, dtype)) for shape in ((3, 5), (), (1000,))]
    received = [pool.submit(lambda each: [each.receive(tuple(x.shape), dtype) for x in sent], each) for each in members]
    for tensor in sent:
        sender.broadcast(tensor, SENDER).wait()
    for got in received:
        assert all(torch.equal(one, other) for one, other in zip(got.result(), sent, strict=True))


def test_a_sender_that_ends_is_an_error_at_once(pool: ThreadPoolExecutor) -> None:
    sender, members = meet(pool, seconds=600)
    waiting = [pool.submit(each.receive, (3,), "float32") for each in members]
    del sender
    for each in waiting:
        with pytest.raises(GroupError, match=r"rank \d: "):
            each.result()


def test_nobody_to_meet_is_an_error() -> None:
    with pytest.raises(GroupError, match=r"no meeting point at 127\.0\.0\.1:1"):
        Broadcasts(HOST, 1, "w", 1, 2, CPU, timedelta(seconds=1), HOST)
