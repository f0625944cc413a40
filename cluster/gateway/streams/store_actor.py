"""The actor that outlives every gateway. It stores what gateways need of each other: streams that
clients may resume, and responses that later ones may continue.

Each Serve application has its own.
"""

import asyncio
import contextlib
import time
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.api.responses.resuming.streams import StreamRecord
from cluster.gateway.streams.response_records import ResponseRecords
from cluster.gateway.streams.stream_records import Batch, StreamRecords

NAMESPACE = "serve"  # where Serve names its actors too
ANSWER_SECONDS = 3.0
START_SECONDS = 20.0  # for an actor that has to be started
IDLE_SECONDS = 600.0  # without a word from any gateway, after which the actor ends
SWEEP_SECONDS = 5.0
TROUBLES = (RayError, ValueError, TimeoutError)  # with an actor: Ray raises ValueError if it does not exist


class StoreActor:
    """Exits when no gateway has called for long and no response is stored: the gateways are gone,
    and nobody else knows this actor.
    """

    def __init__(self) -> None:
        self._streams = StreamRecords()
        self._responses = ResponseRecords()
        self._heard = time.monotonic()
        self._sweeping: asyncio.Task[None] | None = None

    async def write(self, batch: Batch) -> None:
        """Store the batch; an empty one only says that the gateway still exists."""
        self._streams.write(batch, self._hear())

    async def find(self, request_id: str) -> StreamRecord | None:
        return self._streams.find(request_id, self._hear())

    async def keep_response(self, owner: bytes, response_id: str, record: bytes, seconds: float) -> None:
        self._responses.keep(owner, response_id, record, self._hear() + seconds)

    async def find_response(self, owner: bytes, response_id: str) -> bytes | None:
        return self._responses.find(owner, response_id, self._hear())

    async def forget_response(self, owner: bytes, response_id: str) -> bool:
        self._hear()
        return self._responses.forget(owner, response_id)

    async def wake(self) -> None:
        """Keep the actor alive: it will be needed."""
        self._hear()

    def _hear(self) -> float:
        self._heard = time.monotonic()
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep())
        return self._heard

    async def _sweep(self) -> None:
        while time.monotonic() < self._heard + IDLE_SECONDS or self._responses:
            await asyncio.sleep(SWEEP_SECONDS)
            self._streams.sweep(time.monotonic())
            self._responses.sweep(time.monotonic())
        ray.kill(ray.get_runtime_context().current_actor)


class StoreCalls:
    """A gateway's calls to the actor, which the first of them starts. Lives in one event loop."""

    def __init__(self, app_name: str) -> None:
        self._app_name = app_name
        self._actor: Any = None

    async def ask(self, method: str, *arguments: Any, seconds: float = ANSWER_SECONDS) -> Any:
        """Its answer; raises one of TROUBLES, after which the next call goes to a new actor."""
        try:
            if self._actor is None:
                self._actor = await asyncio.to_thread(_start, self._app_name)
            return await asyncio.wait_for(getattr(self._actor, method).remote(*arguments), seconds)
        except TROUBLES:
            self._actor = None
            raise


def end_store(app_name: str) -> None:
    """End the application's actor, if there is one."""
    with contextlib.suppress(ValueError):
        ray.kill(ray.get_actor(actor_name(app_name), namespace=NAMESPACE))


def actor_name(app_name: str) -> str:
    """In NAMESPACE."""
    return f"squadron-streams-{app_name}"


def _start(app_name: str) -> Any:
    """The actor that an application's gateways share. The first gateway creates it, on another node
    if there is one.

    It is bound to that node: Ray treats a soft affinity as met by the first node that gets the
    request. If the node dies, so does the actor, and the next call creates another.
    """
    here = ray.get_runtime_context().get_node_id()
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    return (
        ray.remote(StoreActor)
        .options(
            name=actor_name(app_name),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=64,
            scheduling_strategy=NodeAffinitySchedulingStrategy(next(iter(nodes), here), soft=False),
        )
        .remote()
    )
