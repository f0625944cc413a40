"""A group with receivers on two nodes, from the trainer to what a rank reads."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import ray
import torch
import torch.distributed as dist

from cluster.sockets import LOOPBACK
from cluster.weights.groups.messages import Meeting, Offer, Offered
from cluster.weights.groups.receivers import end_receivers, running_receivers
from cluster.weights.groups.update_groups import UpdateGroups
from cluster.workers.nodes import alive_nodes
from engine.errors import InvalidRequest
from tests.cluster.several_nodes import several_nodes

pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.long]
# Large enough that Ray keeps them in its store, not beside their references.
TENSORS = {"head": torch.randn(512, 256).bfloat16(), "norm": torch.randn(90_000)}
OFFER = Offer("w", {"head": Offered("bfloat16", (512, 256)), "norm": Offered("float32", (90_000,))})


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[str]]:
    with several_nodes([{"num_cpus": 2}, {"num_cpus": 2}]):
        yield [node.node_id for node in alive_nodes()]


async def opened(groups: UpdateGroups, nodes: list[str]) -> Any:
    """The trainer's end of a new group."""
    store = dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    size = await groups.open(Meeting("w", LOOPBACK, store.port, "gloo", 60.0), nodes)
    assert size == len(nodes) + 1
    prefix = dist.PrefixStore("w", store)
    return await asyncio.to_thread(dist.ProcessGroupGloo, prefix, 0, size, timedelta(seconds=60))


def send(group: Any) -> None:
    for tensor in TENSORS.values():
        group.broadcast(tensor, 0).wait()


async def test_each_node_has_them_and_a_lost_ones_ranks_read_anothers(nodes: list[str]) -> None:
    groups = UpdateGroups("app", "engines")
    group = await opened(groups, nodes)
    received, _ = await asyncio.gather(groups.receive(OFFER), asyncio.to_thread(send, group))
    assert received._copies.keys() == set(nodes)
    ray.kill(running_receivers("app", "engines")[0])
    assert {name: tensor.tolist() for name, tensor in received.items()} == {
        name: tensor.tolist() for name, tensor in TENSORS.items()
    }
    with pytest.raises(InvalidRequest, match="group 'w' has lost a receiver: 1 are left"):
        await groups.receive(OFFER)
    end_receivers("app")


async def test_a_receiver_that_is_lost_is_an_error_for_the_trainer_and_the_caller(nodes: list[str]) -> None:
    groups = UpdateGroups("other", "engines")
    group = await opened(groups, nodes)
    ray.kill(running_receivers("other", "engines")[0])
    with pytest.raises(InvalidRequest, match=r"has not come|was lost|has lost a receiver"):
        await groups.receive(OFFER)
    await groups.close("w")
    with pytest.raises(RuntimeError):
        await asyncio.to_thread(send, group)
    assert len(running_receivers("other", "engines")) == 1
    with pytest.raises(InvalidRequest, match="there is no group 'w'"):
        await groups.receive(OFFER)
    end_receivers("other")


async def test_of_two_updates_at_once_one_is_refused(nodes: list[str]) -> None:
    """Each would have some of the tensors."""
    group = await opened(UpdateGroups("third", "engines"), nodes[:1])
    (receiver,) = running_receivers("third", "engines")
    (refused,), (first,) = ray.wait([receiver.receive.remote(OFFER, 1) for _ in range(2)])
    assert ray.get(refused).problem == "another update in this group is under way"
    await asyncio.to_thread(send, group)
    assert ray.get(first).problem is None
    end_receivers("third")
