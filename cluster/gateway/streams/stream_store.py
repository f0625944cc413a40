"""Stores streams that clients may resume, in an actor that outlives every gateway (see
`cluster/api/responses/resume`).

Each Serve application has an actor of its own.

A gateway writes in batches, and waits only for the first write of a stream.
"""

import asyncio
import contextlib
import logging
import time
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.api.errors import Unavailable
from cluster.api.responses.streams import StreamRecord, Told
from cluster.gateway.streams.stream_records import Batch, StreamRecords
from engine.errors import in_a_line

logger = logging.getLogger("squadron.gateway")

NAMESPACE = "serve"  # where Serve names its actors too
BATCH_SECONDS = 0.1
ANSWER_SECONDS = 3.0
IDLE_SECONDS = 600.0  # without a write from any gateway, after which the actor ends
SWEEP_SECONDS = 5.0
_TROUBLES = (RayError, ValueError, TimeoutError)  # with an actor: Ray raises ValueError if it does not exist


class StreamStoreActor:
    """The actor. It ends when no gateway has written for long: they are gone, and no one else knows
    it.
    """

    def __init__(self) -> None:
        self._records = StreamRecords()
        self._heard = time.monotonic()
        self._sweeping: asyncio.Task[None] | None = None

    async def write(self, batch: Batch) -> None:
        """An empty batch means that the gateway still exists."""
        self._heard = time.monotonic()
        self._records.write(batch, self._heard)
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep())

    async def find(self, request_id: str) -> StreamRecord | None:
        return self._records.find(request_id, time.monotonic())

    async def _sweep(self) -> None:
        while time.monotonic() < self._heard + IDLE_SECONDS:
            await asyncio.sleep(SWEEP_SECONDS)
            self._records.sweep(time.monotonic())
        ray.kill(ray.get_runtime_context().current_actor)


class StreamStoreClient:
    """A gateway's client of the actor: a `StreamStore`. Lives in one event loop."""

    def __init__(self, app_name: str) -> None:
        self._app_name = app_name
        self._actor: Any = None
        self._batch = Batch()
        self._news, self._haste = asyncio.Event(), asyncio.Event()
        self._written = asyncio.Event()  # one event per batch, set once it is written
        self._writing = asyncio.create_task(self._write())

    async def open(self, request_id: str, record: StreamRecord) -> None:
        self._batch.opened[request_id] = record
        written = self._written
        self._news.set()
        self._haste.set()
        await written.wait()

    def told(self, told: Told) -> None:
        self._batch.told.append(told)
        self._news.set()

    def close(self, request_id: str) -> None:
        self._batch.closed.append(request_id)
        self._news.set()

    async def find(self, request_id: str) -> StreamRecord | None:
        try:
            record: StreamRecord | None = await self._ask("find", request_id)
        except _TROUBLES:
            message = "The store of streams does not answer now"
            raise Unavailable(message, code="not_ready", retry_after=ANSWER_SECONDS) from None
        return record

    async def _write(self) -> None:
        """Write batch after batch; one that fails twice is lost: its streams continue, but cannot
        be resumed.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), IDLE_SECONDS / 10)
            self._news.clear()
            self._haste.clear()
            batch, written = self._batch, self._written
            self._batch, self._written = Batch(), asyncio.Event()
            for _ in range(2):  # that an actor has ended shows at the first call
                try:
                    await self._ask("write", batch)
                    break
                except _TROUBLES as error:
                    logger.error("streams could not be stored: %s", in_a_line(error))
            written.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._haste.wait(), BATCH_SECONDS)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        """The actor's answer; after a failure the next call goes to a new actor."""
        try:
            if self._actor is None:
                self._actor = await asyncio.to_thread(_start, self._app_name)
            return await asyncio.wait_for(getattr(self._actor, method).remote(*arguments), ANSWER_SECONDS)
        except _TROUBLES:
            self._actor = None
            raise


def end_stream_store(app_name: str) -> None:
    """End the application's actor, if there is one."""
    with contextlib.suppress(ValueError):
        ray.kill(ray.get_actor(actor_name(app_name), namespace=NAMESPACE))


def actor_name(app_name: str) -> str:
    """In NAMESPACE."""
    return f"squadron-streams-{app_name}"


def _start(app_name: str) -> Any:
    """The actor that an application's gateways share, made by the first of them, on another node if
    there is one.

    Bound to that node: Ray treats a soft affinity as met by the first node that gets the request.
    If the node dies, so does the actor, and the next call makes another.
    """
    here = ray.get_runtime_context().get_node_id()
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    return (
        ray.remote(StreamStoreActor)
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
