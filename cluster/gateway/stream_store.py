"""Stores streams that clients may resume, in an actor that outlives every gateway (see
`cluster/api/responses/resume`).

Each Serve application has an actor of its own.

A gateway writes in batches, and waits only for the first write of a stream. The store is bounded in
bytes and in age; what it has dropped cannot be resumed.
"""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.api.errors import Unavailable
from cluster.api.responses.resume import StreamRecord
from engine.errors import in_a_line

logger = logging.getLogger("squadron.gateway")

NAMESPACE = "serve"  # where Serve names its actors too
BATCH_SECONDS = 0.1
ANSWER_SECONDS = 3.0
MAX_BYTES = 64 << 20
TOKEN_BYTES, RECORD_BYTES = 72, 1024  # their approximate size in memory
OPEN_SECONDS, CLOSED_SECONDS = 3600.0, 120.0  # without news: for streams that are being read, and for others
IDLE_SECONDS = 600.0  # without a write from any gateway, after which the actor ends
SWEEP_SECONDS = 5.0
_TROUBLES = (RayError, ValueError, TimeoutError)  # with an actor: Ray raises ValueError if it does not exist


@dataclass(slots=True)
class Told:
    """Tokens of a stream and the events before them; see `StreamStore.told`."""

    request_id: str
    first_index: int
    token_ids: list[int]
    num_events: int
    num_cached: int
    max_tokens: int | None


@dataclass(slots=True)
class Batch:
    """A gateway's writes: new streams, tokens, streams that are no longer read."""

    opened: dict[str, StreamRecord] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)


class StreamRecords:
    """The stored streams, least recently written first. `now` is of any monotonic clock."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._records: OrderedDict[str, StreamRecord] = OrderedDict()
        self._until: dict[str, float] = {}

    def write(self, batch: Batch, now: float) -> None:
        for request_id, record in batch.opened.items():
            self._forget(request_id)
            self._records[request_id] = record
            self._num_bytes += _size(record)
            self._until[request_id] = now + OPEN_SECONDS
        for told in batch.told:
            self._tell(told, now)
        for request_id in batch.closed:
            if request_id in self._until:
                self._until[request_id] = now + CLOSED_SECONDS
        while self._num_bytes > self._max_bytes:
            self._forget(next(iter(self._records)))

    def find(self, request_id: str, now: float) -> StreamRecord | None:
        return self._records.get(request_id) if self._until.get(request_id, now) > now else None

    def sweep(self, now: float) -> None:
        """Drop what is too old."""
        for request_id in [request_id for request_id, until in self._until.items() if until <= now]:
            self._forget(request_id)

    def _tell(self, told: Told, now: float) -> None:
        """Append tokens that continue the stored ones; two gateways that write the same stream
        write the same.
        """
        record = self._records.get(told.request_id)
        if record is None or told.first_index > len(record.token_ids):
            return
        before = len(record.token_ids)
        if before == 0:
            record.num_cached_tokens, record.max_tokens = told.num_cached, told.max_tokens
        new = told.token_ids[before - told.first_index :]
        record.token_ids += new
        record.num_events += [told.num_events] * len(new)
        self._num_bytes += len(new) * TOKEN_BYTES
        self._records.move_to_end(told.request_id)
        self._until[told.request_id] = now + OPEN_SECONDS

    def _forget(self, request_id: str) -> None:
        record = self._records.pop(request_id, None)
        if record is not None:
            self._num_bytes -= _size(record)
            del self._until[request_id]


def _size(record: StreamRecord) -> int:
    return RECORD_BYTES + TOKEN_BYTES * len(record.token_ids)


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

    def told(
        self,
        request_id: str,
        first_index: int,
        token_ids: list[int],
        num_events: int,
        num_cached: int,
        max_tokens: int | None,
    ) -> None:
        self._batch.told.append(Told(request_id, first_index, token_ids, num_events, num_cached, max_tokens))
        self._news.set()

    def close(self, request_id: str) -> None:
        self._batch.closed.append(request_id)
        self._news.set()

    async def find(self, request_id: str) -> StreamRecord | None:
        try:
            record: StreamRecord | None = await self._ask("find", request_id)
        except _TROUBLES:
            message = "What is remembered of streams cannot be asked for now"
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
                    logger.error("streams are not remembered: %s", in_a_line(error))
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
