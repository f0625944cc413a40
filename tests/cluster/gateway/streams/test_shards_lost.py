"""Shards whose processes end or hang, and the end of all. Real processes, on one node."""

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import ray

from cluster.actors.named import NAMESPACE
from cluster.gateway.streams.response_store import ResponseStoreClient
from cluster.gateway.streams.shard import Shard, end_store, number_of, running_shards
from cluster.launch.node.ending import end_connection
from tests.cluster.workers.ranks import ROOT, SECONDS
from tests.cluster.workers.test_node_lost import cluster
from tests.end_to_end.chaos.processes import find

APP = "kept"
OWNER = b"me"
STORED = {f"resp_{number}": bytes([number]) for number in range(12)}
FIRST, SECOND = ({name: STORED[name] for name in STORED if number_of(name, 2) == number} for number in (0, 1))
__all__ = ["cluster"]  # the fixture
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray's: see there


@pytest.fixture
def app(cluster: Any) -> Iterator[str]:
    ray.init(address=cluster.address, runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}}, log_to_driver=False)
    yield APP
    end_store(APP)
    end_connection()


async def test_the_loss_of_a_shard_is_none_of_another(app: str) -> None:
    """First of one process, then of both."""
    gateway = ResponseStoreClient(app, 2, 3600.0)
    async with asyncio.timeout(2 * SECONDS):
        assert all([await gateway.keep(OWNER, name, STORED[name]) for name in STORED])
        for shard, stored in enumerate((FIRST, SECOND)):
            for twin in (0, 1):
                await until_it_has_all(shard, twin, stored)
                other = SECOND if stored is FIRST else FIRST
                assert [await look(shard, twin, name) for name in other] == [None] * len(other)

        os.kill(pid_of(0, 0), signal.SIGKILL)
        assert {name: await gateway.find(OWNER, name) for name in STORED} == STORED
        await until_it_has_all(0, 0, FIRST)

        frozen = [pid_of(0, twin) for twin in (0, 1)]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        name, another = (next(f"new_{n}" for n in range(99) if number_of(f"new_{n}", 2) == each) for each in (0, 1))
        assert {name: await gateway.find(OWNER, name) for name in SECOND} == SECOND
        # It waits for some seconds only: no more than a write meanwhile.
        waiting = asyncio.create_task(gateway.keep(OWNER, name, b"x"))
        assert await gateway.keep(OWNER, another, b"y")
        assert not waiting.done()
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
        assert await waiting and await gateway.find(OWNER, name) == b"x"

        for pid in frozen:
            os.kill(pid, signal.SIGKILL)
        assert {name: await gateway.find(OWNER, name) for name in SECOND} == SECOND
        while not await gateway.keep(OWNER, "again", b"z"):
            pass  # each try waits for an answer
        assert await gateway.find(OWNER, "again") == b"z"


async def test_the_end_of_the_store_is_that_of_every_actor(app: str) -> None:
    gateways = [ResponseStoreClient(app, count, 3600.0) for count in (1, 2)]
    async with asyncio.timeout(SECONDS):
        for gateway in gateways:
            assert all([await gateway.keep(OWNER, name, STORED[name]) for name in STORED])
        for gateway in gateways:
            assert {name: await gateway.find(OWNER, name) for name in STORED} == STORED
        assert running_shards(app) == {Shard(app, 0, 1), Shard(app, 0, 2), Shard(app, 1, 2)}
        while len(pids := find("ray::StoreActor")) < 6:  # the second ones may still start
            await asyncio.sleep(0.05)
        end_store(app)
        while set(pids) & set(find("ray::StoreActor")):
            await asyncio.sleep(0.05)
        assert running_shards(app) == set()


async def until_it_has_all(shard: int, twin: int, stored: dict[str, bytes]) -> None:
    """By itself; it may be still to be started."""
    while True:
        try:
            if {name: await look(shard, twin, name) for name in stored} == stored:
                return
        except (ray.exceptions.RayError, ValueError):
            pass
        await asyncio.sleep(0.05)


async def look(shard: int, twin: int, name: str) -> bytes | None:
    found: bytes | None = await actor(shard, twin).look_for_response.remote((OWNER, name))
    return found


def pid_of(shard: int, twin: int) -> int:
    pid: int = ray._private.state.actors()[actor(shard, twin)._actor_id.hex()]["Pid"]
    assert pid in find("ray::StoreActor")
    return pid


def actor(shard: int, twin: int) -> Any:
    """Raises ValueError while there is none."""
    return ray.get_actor(Shard(APP, shard, 2).actor_name(twin), namespace=NAMESPACE)
