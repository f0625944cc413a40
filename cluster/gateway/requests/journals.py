"""The requests that a gateway has now, each with its journal."""

import asyncio
import itertools
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from cluster.api.service import Shortcut
from cluster.gateway.requests.journal import Journal
from cluster.replica.delta_channel.messages import PlainDelta
from engine.admission.queue_limits import NOTHING, Load
from engine.outputs import RequestOutput
from engine.request import Request, estimated_tokens


class Journals:
    """Lives in one event loop."""

    def __init__(self, on_end: Callable[[Journal, BaseException | None], None] = lambda *_: None) -> None:
        """`on_end` is called when a request has ended, with the exception that ended it."""
        self._on_end = on_end
        self._journals: dict[str, Journal] = {}  # by the id that engines know the request by
        self._name = secrets.token_hex(8)
        self._count = itertools.count()
        self._all_ended = asyncio.Event()
        self._waiting: dict[str, Load] = {}  # by id, of requests that have had nothing yet
        self.waiting = NOTHING  # of all of them
        self.num_waiting_of: Counter[str | None] = Counter()  # by API key

    def __iter__(self) -> Iterator[Journal]:
        return iter(self._journals.values())

    def __len__(self) -> int:
        return len(self._journals)

    def of(self, connection: str) -> list[Journal]:
        """Those whose current attempt comes over the connection."""
        return [journal for journal in self if journal.source == connection]

    @contextmanager
    def open(self, request: Request, shortcut: Shortcut | None = None) -> Iterator[Journal]:
        """The request's, while this is open."""
        own = self._as_engines_know(request)
        journal = self._journals[own.id] = Journal(request.id, own, shortcut)
        if not any(request.resume.output_ids):
            self._waiting[own.id] = load = Load(1, estimated_tokens(request.prompt))
            self.waiting += load
            self.num_waiting_of[request.share.key] += 1
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
            self._waits_no_more(own.id, journal)
            self._all_ended.set()

    async def until_all_ended(self) -> None:
        while self._journals:
            self._all_ended.clear()
            await self._all_ended.wait()

    def accept(self, deltas: list[RequestOutput | PlainDelta], connection: str) -> None:
        """Hand each delta to its journal; those of requests that have ended are dropped."""
        for delta in deltas:
            own_id = delta.request_id  # which the journal replaces by the client's
            journal = self._journals.get(own_id)
            if journal is None:
                continue
            if isinstance(delta, PlainDelta):  # never the first
                journal.accept_plain(delta, connection)
            elif journal.accept(delta, connection) and delta.outputs:
                self._waits_no_more(own_id, journal)

    def _waits_no_more(self, own_id: str, journal: Journal) -> None:
        load = self._waiting.pop(own_id, None)
        if load is not None:
            self.waiting -= load
            key = journal.request.share.key
            self.num_waiting_of[key] -= 1
            if not self.num_waiting_of[key]:
                del self.num_waiting_of[key]

    def _as_engines_know(self, request: Request) -> Request:
        """By an id that no other request has, and with a seed, so that the next attempt samples
        what the first one would have.
        """
        params = request.params
        if params.seed is None and params.beam_width is None:
            params = replace(params, seed=secrets.randbits(63))
        return replace(request, id=f"{self._name}-{next(self._count)}", params=params)
