"""The streams that clients may come back to, remembered by an actor that outlives every gateway
(see `cluster/api/responses/resume`).

Each Serve application has an actor of its own.

A gateway writes what it has told in batches, and waits for the first of a stream only. What is
remembered is bounded in bytes and in age; what is forgotten cannot be resumed.
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
TOKEN_BYTES, RECORD_BYTES = 72, 1024  # what they take in memory, about
OPEN_SECONDS, CLOSED_SECONDS = 3600.0, 120.0  # without news, of streams that somebody reads or nobody
IDLE_SECONDS = 600.0  # without a word of any gateway: then the actor ends
SWEEP_SECONDS = 5.0
_TROUBLES = (RayError, ValueError, TimeoutError)  # with an actor: ValueError is Ray's word for one that is not there


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
    """What a gateway has to say: new streams, tokens, streams that nobody reads any more."""

    opened: dict[str, StreamRecord] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)


class StreamRecords:
    """What is remembered, the longest unheard of first. `now` is any clock that goes on."""

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
        """Forget what is too old."""
        for request_id in [request_id for request_id, until in self._until.items() if until <= now]:
            self._forget(request_id)

    def _tell(self, told: Told, now: float) -> None:
        """Take tokens that go on from those there are; two that tell the same stream tell the same
        of it.
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


class StreamJournal:
    """The actor. It ends when no gateway has said a word for long: they are gone, and nobody else
    knows of it.
    """

    def __init__(self) -> None:
        self._records = StreamRecords()
        self._heard = time.monotonic()
        self._sweeping: asyncio.Task[None] | None = None

    async def write(self, batch: Batch) -> None:
        """An empty batch is a gateway's word that it is there."""
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


class JournalClient:
    """A gateway's way to the actor: a `StreamStore`. Lives in one event loop."""

    def __init__(self, app_name: str) -> None:
        self._app_name = app_name
        self._actor: Any = None
        self._batch = Batch()
        self._news, self._haste = asyncio.Event(), asyncio.Event()
        self._written = asyncio.Event()  # set anew for each batch, once it is written
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
        """Batch after batch; one that fails twice is lost: its streams go on, and cannot be taken
        up again.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), IDLE_SECONDS / 10)
            self._news.clear()
            self._haste.clear()
            batch, written = self._batch, self._written
            self._batch, self._written = Batch(), asyncio.Event()
            for _ in range(2):  # an actor that has ended is known by the first question to it
                try:
                    await self._ask("write", batch)
                    break
                except _TROUBLES as error:
                    logger.error("streams are not remembered: %s", in_a_line(error))
            written.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._haste.wait(), BATCH_SECONDS)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        """The actor's answer, of another actor the next time if it has none."""
        try:
            if self._actor is None:
                self._actor = await asyncio.to_thread(_start, self._app_name)
            return await asyncio.wait_for(getattr(self._actor, method).remote(*arguments), ANSWER_SECONDS)
        except _TROUBLES:
            self._actor = None
            raise


def end_journal(app_name: str) -> None:
    """End the application's actor, if there is one."""
    with contextlib.suppress(ValueError):
        ray.kill(ray.get_actor(actor_name(app_name), namespace=NAMESPACE))


def actor_name(app_name: str) -> str:
    """In NAMESPACE."""
    return f"squadron-streams-{app_name}"


def _start(app_name: str) -> Any:
    """The actor that an application's gateways have in common, made by the first of them, on
    another node where there is one.

    Tied to that node: Ray takes a soft wish as fulfilled by the node that hears of it first. If the
    node dies, so does the actor, and the next question makes another.
    """
    here = ray.get_runtime_context().get_node_id()
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    return (
        ray.remote(StreamJournal)
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
