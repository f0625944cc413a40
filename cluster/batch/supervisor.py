"""Has stored batches run, in an actor that outlives every gateway.

Each running batch has a driver, an actor of its own. A driver that dies is replaced. When this
actor dies, Ray restarts it, and ends its drivers; what they were running is found in the store.
"""

import asyncio
import logging
import time
from collections import Counter
from typing import Any, NamedTuple

import ray

from cluster.api.batches import ENDED, Status
from cluster.batch.driver import CPUS, Driver, end, fail
from cluster.batch.files.place import Place
from cluster.batch.store import Record, Store
from engine.errors import SquadronError, in_a_line

logger = logging.getLogger("squadron.gateway")

MAX_RUNNING = 2  # batches
LOOK_SECONDS = 1.0  # between two looks at those that run
SCAN_SECONDS = 10.0  # between two looks at all of the store, unless a gateway says that there is more
LATER_SECONDS = 5.0  # before a batch is tried again
MAX_FAILURES = 5  # consecutive ones of a batch's drivers, without a line answered in between
IDLE_SECONDS = 120.0  # without a word from any gateway, after which the actor ends


class _Running(NamedTuple):
    record: Record
    actor: Any
    result: Any  # of its run


class Supervisor:
    """The actor."""

    def __init__(self, folder: Place, app_name: str) -> None:
        self._folder = folder
        self._store = Store(folder)
        self._app_name = app_name
        self._running: dict[str, _Running] = {}
        self._failures: Counter[tuple[str, int]] = Counter()  # by batch and the lines that it had answered
        self._not_before: dict[str, float] = {}
        self._heard = time.monotonic()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def look(self) -> None:
        """A gateway exists; there may be a new batch, or one that is to be cancelled."""
        self._heard = time.monotonic()
        self._news.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._supervise())

    async def _supervise(self) -> None:
        scanned = -SCAN_SECONDS
        waiting: list[Record] = []
        while time.monotonic() < self._heard + IDLE_SECONDS:
            if self._news.is_set() or time.monotonic() > scanned + SCAN_SECONDS:
                self._news.clear()
                scanned = time.monotonic()
                waiting = await asyncio.to_thread(self._unfinished)
            for running in list(self._running.values()):
                await self._look_at(running)
            waiting = await asyncio.to_thread(self._begin, waiting)
            try:
                await asyncio.wait_for(self._news.wait(), LOOK_SECONDS)
            except TimeoutError:
                continue
        ray.kill(ray.get_runtime_context().current_actor)

    def _unfinished(self) -> list[Record]:
        """Of all owners, oldest first, without those that run."""
        records: list[Record] = []
        for owner in self._store.owners():
            try:
                records += self._store.records(owner)
            except OSError as error:  # no owner's: lost+found, say
                logger.error("batches of %s cannot be read: %s", owner, in_a_line(error))
        found = [each for each in records if each.batch.status not in ENDED and each.batch.id not in self._running]
        return sorted(found, key=lambda record: record.batch.created_at)

    def _begin(self, waiting: list[Record]) -> list[Record]:
        """Starts as many as may run, those first whose owners have fewest running; the rest."""
        rest = [record for record in waiting if self._goes_on(record)]
        num_of = Counter(running.record.owner.folder for running in self._running.values())
        while len(self._running) < MAX_RUNNING:
            ready = [each for each in rest if time.monotonic() >= self._not_before.get(each.batch.id, 0)]
            if not ready:
                break
            record = min(ready, key=lambda each: num_of[each.owner.folder])
            rest = [each for each in rest if each is not record]
            num_of[record.owner.folder] += 1
            self._start(record)
        return rest

    def _goes_on(self, record: Record) -> bool:
        """Ends a batch that is to end, but not right after its driver was killed, which may still
        write for a moment. One that cannot be ended is looked at again with the next scan: it must
        not hold up the others.
        """
        try:
            status = self._wish(record)
            if status is None or time.monotonic() < self._not_before.get(record.batch.id, 0):
                return True
            last = self._store.batch(record.owner, record.batch.id)  # a driver may have ended it
            if last.status not in ENDED:
                end(self._store, Record(batch=last, owner=record.owner), status)
        except Exception as error:
            logger.error("%s cannot be ended now: %s", record.batch.id, in_a_line(error))
        return False

    def _start(self, record: Record) -> None:
        actor = ray.remote(Driver).options(num_cpus=CPUS).remote()
        result = actor.run.remote(self._folder, record, self._app_name)
        self._running[record.batch.id] = _Running(record, actor, result)

    async def _look_at(self, running: _Running) -> None:
        batch_id = running.record.batch.id
        status = await asyncio.to_thread(self._wish, running.record)
        ended, _ = await asyncio.to_thread(ray.wait, [running.result], timeout=0)
        if not ended and status is None:
            return
        try:
            has_ended = bool(ended) and await running.result
        except ray.exceptions.RayError as error:
            has_ended = False
            logger.error("the driver of %s was lost: %s", batch_id, in_a_line(error))
            self._count_failure(running.record)
        ray.kill(running.actor)
        del self._running[batch_id]
        if not has_ended:
            self._not_before[batch_id] = time.monotonic() + LATER_SECONDS
            self._news.set()
        elif status is None:
            self._news.set()

    def _count_failure(self, record: Record) -> None:
        """Ends a batch whose drivers fail again and again without answering a line. One that cannot
        be read or written now is tried again.
        """
        try:
            self._note_failure(record)
        except Exception as error:
            logger.error("%s cannot be looked at now: %s", record.batch.id, in_a_line(error))

    def _note_failure(self, record: Record) -> None:
        stored = self._store.batch(record.owner, record.batch.id)
        if stored.status in ENDED:  # by a driver that was lost afterwards
            return
        counts = stored.request_counts
        place = (record.batch.id, counts.completed + counts.failed)
        self._failures[place] += 1
        if self._failures[place] >= MAX_FAILURES:
            last = Record(batch=stored, owner=record.owner)
            fail(self._store, last, SquadronError(f"the batch's driver failed {MAX_FAILURES} times"))

    def _wish(self, record: Record) -> Status | None:
        """How the batch is to end, if it is."""
        if self._store.cancelled_at(record) is not None:
            return "cancelled"
        if record.batch.expires_at is not None and time.time() > record.batch.expires_at:
            return "expired"
        return None
