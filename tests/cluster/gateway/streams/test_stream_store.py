"""Where streams are remembered: outside the gateway, for every gateway, and what if a node dies."""

import asyncio
from typing import Any

import pytest
import ray

from cluster.actors.named import NAMESPACE
from cluster.api.errors import Unavailable
from cluster.api.responses.resuming.streams import StreamRecord, Told
from cluster.gateway.streams.shard import Shard, end_store
from cluster.gateway.streams.stream_store import StreamStoreClient
from cluster.launch.node.start.agents import agents_may_be_late
from cluster.launch.node.start.starting import patience
from tests.cluster.workers.ranks import ROOT
from tests.cluster.workers.test_node_lost import NODE, SECONDS, cluster

APP = "one"
__all__ = ["cluster"]  # the fixture
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray's: see there


@pytest.mark.long
async def test_gateways_share_a_store_that_outlives_each_of_its_nodes(cluster: Any) -> None:
    with patience(), agents_may_be_late():
        other = cluster.add_node(num_cpus=1, **NODE)
    ray.init(address=cluster.address, runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}}, log_to_driver=False)
    ray.get(ray.remote(num_cpus=1)(lambda: None).remote())  # which only the other node can: now it is known to be there
    async with asyncio.timeout(SECONDS):
        gateway, another = StreamStoreClient(APP, 1), StreamStoreClient(APP, 1)
        await gateway.open("one", StreamRecord(b"who", 5, 7))
        assert await another.find("one") == StreamRecord(b"who", 5, 7)
        gateway.told(Told("one", 0, [11], 0, 3, 40))
        gateway.told(Told("one", 1, [12], 1, 0, 40))
        while (known := await another.find("one")) is not None and len(known.token_ids) < 2:
            await asyncio.sleep(0.05)
        assert known == StreamRecord(b"who", 5, 7, None, 3, 40, [11, 12], [0, 1])
        while await _known_to_each("one") != [known, known]:
            await asyncio.sleep(0.05)
        assert _place(0) == other.node_id
        await check_that_applications_share_nothing(gateway)
        cluster.remove_node(other)
        assert await another.find("one") == known
        gateway.told(Told("one", 2, [13], 2, 3, 40))
        await gateway.open("two", StreamRecord(b"who", 6, 8))
        while (known := await another.find("one")) is not None and len(known.token_ids) < 3:
            await asyncio.sleep(0.05)
        while await _known_to_each("one") != [known, known]:
            await asyncio.sleep(0.05)
        assert _place(0) == cluster.head_node.node_id
        assert await StreamStoreClient(APP, 1).find("two") == StreamRecord(b"who", 6, 8)


async def check_that_applications_share_nothing(gateway: StreamStoreClient) -> None:
    """Nor does the end of the one's store touch the other's."""
    stranger = StreamStoreClient("another", 1)
    await _forgotten(stranger, "one")
    await stranger.open("foreign", StreamRecord(b"who", 6, 8))
    assert await gateway.find("foreign") is None
    end_store("another")
    await _forgotten(stranger, "foreign")
    assert await gateway.find("one") is not None


def _place(number: int) -> Any:
    """The node of the actor."""
    actor = ray.get_actor(Shard(APP, 0, 1).actor_name(number), namespace=NAMESPACE)
    return ray._private.state.actors()[actor._actor_id.hex()]["Address"]["NodeID"]


async def _known_to_each(request_id: str) -> list[StreamRecord | None]:
    """To each actor by itself; one may be still to be started."""
    try:
        actors = [ray.get_actor(Shard(APP, 0, 1).actor_name(number), namespace=NAMESPACE) for number in (0, 1)]
        return [await actor.look_for_stream.remote(request_id) for actor in actors]
    except (ray.exceptions.RayError, ValueError):
        return []


async def _forgotten(client: StreamStoreClient, request_id: str) -> None:
    """Return once a store that knows nothing of it answers: to start one takes a while, and so does
    the end of the one before to arrive.
    """
    while True:
        try:
            if await client.find(request_id) is None:
                return
        except Unavailable:
            pass
        await asyncio.sleep(0.05)
