"""The requests that a gateway has now, each with its journal."""

import asyncio
import itertools
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from cluster.gateway.journal import Journal
from engine.outputs import RequestOutput
from engine.request import Request


class Journals:
    """Lives in one event loop."""

    def __init__(self) -> None:
        self._journals: dict[str, Journal] = {}  # by the id that engines know the request by
        self._name = secrets.token_hex(8)
        self._count = itertools.count()
        self._all_ended = asyncio.Event()

    def __iter__(self) -> Iterator[Journal]:
        return iter(self._journals.values())

    def of(self, connection: str) -> list[Journal]:
        """Those whose current attempt comes over the connection."""
        return [journal for journal in self if journal.source == connection]

    @contextmanager
    def open(self, request: Request) -> Iterator[Journal]:
        """The request's, while this is open."""
        own = self._as_engines_know(request)
        journal = self._journals[own.id] = Journal(request.id, own)
        try:
            yield journal
        finally:
            del self._journals[own.id]
            self._all_ended.set()

    async def until_all_ended(self) -> None:
        while self._journals:
            self._all_ended.clear()
            await self._all_ended.wait()

    def accept(self, deltas: list[RequestOutput], connection: str) -> None:
        """Hand each delta to its journal; those of requests that have ended are dropped."""
        for delta in deltas:
            journal = self._journals.get(delta.request_id)
            if journal is not None:
                journal.accept(delta, connection)

    def _as_engines_know(self, request: Request) -> Request:
        """By an id that no other request has, and with a seed, so that the next attempt samples
        what the first one would have.
        """
        params = request.params
        if params.seed is None and params.beam_width is None:
            params = replace(params, seed=secrets.randbits(63))
        return replace(request, id=f"{self._name}-{next(self._count)}", params=params)
