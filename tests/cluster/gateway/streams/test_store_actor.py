"""The store's two actors: what a client was told to be stored is, whichever of their nodes and
processes ends. Real nodes and processes; see also `test_stream_store`.
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import ray

from cluster.actors.named import NAMESPACE
from cluster.api.errors import Unavailable
from cluster.gateway.streams.response_store import ResponseStoreClient
from cluster.gateway.streams.shard import Shard, end_store
from cluster.launch.node.ending import end_connection
from cluster.launch.node.start.agents import agents_may_be_late
from cluster.launch.node.start.starting import patience
from tests.cluster.workers.ranks import ROOT
from tests.cluster.workers.test_node_lost import NODE, SECONDS, cluster
from tests.end_to_end.chaos.processes import find

APP = "kept"
OWNER = b"me"
STORED = {f"resp_{number}": bytes([number]) * 200_000 for number in range(12)}  # several batches
ALL = {**STORED, "gone": None}
__all__ = ["cluster"]  # the fixture
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray's: see there


@pytest.fixture
def gateway(cluster: Any) -> Iterator[ResponseStoreClient]:
    """On the head, beside a second node."""
    with patience(), agents_may_be_late():
        cluster.add_node(num_cpus=1, **NODE)
    ray.init(address=cluster.address, runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}}, log_to_driver=False)
    ray.get(ray.remote(num_cpus=1)(lambda: None).remote())  # which only the other node can: now it is known to be there
    yield ResponseStoreClient(APP, 1, 3600.0)
    end_store(APP)
    end_connection()


@pytest.mark.long
async def test_what_is_stored_outlives_each_node_and_each_process(cluster: Any, gateway: ResponseStoreClient) -> None:
    async with asyncio.timeout(3 * SECONDS):
        gateway.wake()
        assert await gateway.keep(OWNER, "first", b"z")
        await until_all_have({"first": b"z"})
        for name in STORED:
            assert await gateway.keep(OWNER, name, STORED[name])
        assert await gateway.keep(OWNER, "gone", b"x") and await gateway.forget(OWNER, "gone")
        assert not await gateway.forget(OWNER, "gone")
        nodes = {node.node_id: node for node in cluster.list_all_nodes()}
        first, second = [node_of(number) for number in (0, 1)]
        assert first != second, "on a node each"
        assert [await has(number, ALL) for number in (0, 1)] == [True, True], "each has all before a client is told so"

        cluster.remove_node(nodes[first], allow_graceful=False)
        await check(gateway)
        await check(ResponseStoreClient(APP, 1, 3600.0))
        assert await gateway.keep(OWNER, "later", b"y"), "one that lives is enough"
        await until_all_have(ALL)
        assert node_of(0) == second, "there is no other one"

        with patience(), agents_may_be_late():
            cluster.add_node(num_cpus=1, **NODE)
        while node_of(1) in (None, second):
            await asyncio.sleep(0.1)
        await until_all_have(ALL)
        for number in (0, 1):
            os.kill(pid_of(number), signal.SIGKILL)
            await check(gateway)
            await until_all_have(ALL)
        assert await gateway.find(OWNER, "later") == b"y"


async def check(gateway: ResponseStoreClient) -> None:
    """It finds all that is stored, and nothing that was forgotten."""
    assert {name: await gateway.find(OWNER, name) for name in STORED} == STORED
    assert await found(gateway, "gone") is None and await found(gateway, "never there") is None


async def found(gateway: ResponseStoreClient, name: str) -> bytes | None:
    """What one actor alone does not know, the other has to say, which may have to start."""
    while True:
        try:
            return await gateway.find(OWNER, name)
        except Unavailable:
            await asyncio.sleep(0.05)


async def until_all_have(stored: dict[str, bytes | None]) -> None:
    """Both are there, and each by itself knows that."""
    for number in (0, 1):
        while True:
            try:
                if await has(number, stored):
                    break
            except (ray.exceptions.RayError, ValueError):
                pass  # it is still to be started
            await asyncio.sleep(0.05)


async def has(number: int, stored: dict[str, bytes | None]) -> bool:
    actor = ray.get_actor(Shard(APP, 0, 1).actor_name(number), namespace=NAMESPACE)
    return {name: await actor.look_for_response.remote((OWNER, name)) for name in stored} == stored


def node_of(number: int) -> Any:
    """None while there is no such actor."""
    return address_of(number).get("NodeID")


def pid_of(number: int) -> int:
    pid: int = address_of(number)["Pid"]
    assert pid in find("ray::StoreActor")
    return pid


def address_of(number: int) -> dict[str, Any]:
    try:
        actor = ray.get_actor(Shard(APP, 0, 1).actor_name(number), namespace=NAMESPACE)
    except ValueError:
        return {}
    told = ray._private.state.actors()[actor._actor_id.hex()]
    return {**told["Address"], "Pid": told["Pid"]}
