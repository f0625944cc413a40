"""The current requests of a gateway, each with its journal."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cluster.api.errors import ShuttingDown
from cluster.api.service import Shortcut
from cluster.gateway.requests.history import History
from cluster.gateway.requests.journal import Journal
from cluster.gateway.requests.naming import Naming
from cluster.gateway.requests.waiting import Waiting
from cluster.replica.delta_channel.messages import Delta, PlainDelta
from engine.request import Request

logger = logging.getLogger("squadron.gateway")


class Journals:
    """Lives in one event loop."""

    def __init__(self, on_end: Callable[[Journal, BaseException | None], None] = lambda *_: None) -> None:
        """`on_end` is called when a request has ended, with the exception that ended it."""
        self._on_end = on_end
        self._journals: dict[str, Journal] = {}  # by the id that engines know the request by
        self._naming = Naming()
        self._all_ended = asyncio.Event()
        self.waiting = Waiting()
        self.history = History()
        self.num_seqs = 0  # choices of all requests, as many as have not finished
        self.is_draining = False

    def __iter__(self) -> Iterator[Journal]:
        return iter(self._journals.values())

    def __len__(self) -> int:
        return len(self._journals)

    def of(self, connection: str) -> list[Journal]:
        """The journals whose current attempt comes over the connection."""
        return [journal for journal in self if journal.source == connection]

    @contextmanager
    def open(self, request: Request, shortcut: Shortcut | None = None) -> Iterator[Journal]:
        """The request's journal, while this context is open."""
        own = self._naming.as_engines_know(request)
        journal = self._journals[own.id] = Journal(request.id, own, shortcut)
        self.num_seqs += journal.num_open_choices
        self.history.add(request.id, own.id)
        if not any(request.resume.output_ids):
            self.waiting.add(own)
        late = None
        if request.timeout is not None:
            late = asyncio.get_running_loop().call_later(request.timeout, journal.expire)
        ended_by: BaseException | None = None
        try:
            yield journal
        except BaseException as error:
            ended_by = error
            raise
        finally:
            if late is not None:
                late.cancel()
            self._on_end(journal, ended_by)
            del self._journals[own.id]
            self.num_seqs -= journal.num_open_choices
            self.waiting.remove(own)
            self._all_ended.set()

    def check_open(self) -> None:
        """Raises ShuttingDown if no more requests are taken."""
        if self.is_draining:
            raise ShuttingDown()

    async def drain(self, grace: float) -> None:
        """Take no more requests. Running ones are finished; after `grace` seconds they end with an
        error.
        """
        self.is_draining = True
        logger.info("shutting down: %d requests have %.0f s to end", len(self), grace)
        try:
            async with asyncio.timeout(grace):
                await self._until_all_ended()
        except TimeoutError:
            for journal in self:
                journal.end(ShuttingDown())

    async def _until_all_ended(self) -> None:
        while self._journals:
            self._all_ended.clear()
            await self._all_ended.wait()

    def accept(self, deltas: list[Delta], connection: str) -> None:
        """Hand each delta to its journal; those of requests that have ended are dropped."""
        for delta in deltas:
            journal = self._journals.get(delta.request_id)
            if journal is None:
                continue
            if isinstance(delta, PlainDelta):  # never the first, nor the last
                journal.accept_plain(delta, connection)
                continue
            num_open = journal.num_open_choices
            if journal.accept(delta, connection) and delta.outputs:
                self.waiting.remove(journal.request)
                self.num_seqs -= num_open - journal.num_open_choices
