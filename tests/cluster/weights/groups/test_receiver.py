"""A receiver in two groups of one name, one after the other, as where a trainer was silent and has
begun anew.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from cluster.sockets import LOOPBACK
from cluster.weights.groups import receiver, update_groups
from cluster.weights.groups.messages import Meeting, Offer, Offered
from cluster.weights.groups.receiver import Receiver
from cluster.weights.groups.update_groups import UpdateGroups
from engine.errors import InvalidRequest

TENSOR = torch.arange(6.0)
OFFER = Offer("w", {"norm": Offered("float32", (6,))})
SILENCE = 3.0  # seconds, after which the first group fails


class Handle:
    """Of an actor, whose methods run in threads here."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=partial(asyncio.to_thread, getattr(self._actor, name)))


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> UpdateGroups:
    context = SimpleNamespace(get_node_id=lambda: "node")
    address = SimpleNamespace(get_node_ip_address=lambda: LOOPBACK)
    ours = SimpleNamespace(get_runtime_context=lambda: context, util=address, put=lambda tensor: tensor)
    monkeypatch.setattr(receiver, "ray", ours)
    monkeypatch.setattr(receiver, "end_with", lambda app_name: None)
    handle = Handle(Receiver("app"))
    monkeypatch.setattr(update_groups, "start_receiver", lambda *place: handle)
    monkeypatch.setattr(update_groups, "running_receivers", lambda *place: [handle])
    return UpdateGroups("app", "engines")


async def opened(groups: UpdateGroups, seconds: float) -> Any:
    """The trainer's end of a new group."""
    store = dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    size = await groups.open(Meeting("w", LOOPBACK, store.port, "gloo", seconds), ["node"])
    prefix = dist.PrefixStore("w", store)
    return await asyncio.to_thread(dist.ProcessGroupGloo, prefix, 0, size, timedelta(seconds=60))


def send(group: Any) -> None:
    group.broadcast(TENSOR, 0).wait()


async def test_an_update_that_fails_late_leaves_a_later_group_of_that_name_alone(groups: UpdateGroups) -> None:
    first = await opened(groups, SILENCE)
    waiting = asyncio.create_task(groups.receive(OFFER))
    (handle,) = await groups._receivers()
    await until(lambda: handle._actor._groups["w"].in_use.locked())
    second = await opened(groups, 60.0)
    with pytest.raises(InvalidRequest, match="tensor norm has not come"):
        await waiting
    received, _ = await asyncio.gather(groups.receive(OFFER), asyncio.to_thread(send, second))
    assert received._copies["node"]._refs["norm"].tolist() == TENSOR.tolist()
    del first


async def test_an_update_that_fails_closes_its_group(groups: UpdateGroups) -> None:
    group = await opened(groups, SILENCE)
    with pytest.raises(InvalidRequest, match="tensor norm has not come"):
        await groups.receive(OFFER)
    with pytest.raises(InvalidRequest, match="there is no group 'w'"):
        await groups.receive(OFFER)
    del group


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0)
