"""Admits or rejects an incoming request, and reads it."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request

from cluster.api.arrivals import tell_model
from cluster.api.keys.limits import caller_of
from cluster.api.models.model import Model, Models
from cluster.api.requests.body import Bodies
from cluster.api.requests.call import Call, traced
from cluster.api.requests.read import Body, Reader
from cluster.api.requests.validate import timeout_of
from cluster.api.responses.resuming.streams import LetIn
from engine.request import NO_KEY

Read = Callable[[bytes], Coroutine[Any, Any, Call]]
Made = TypeVar("Made")


class Incoming:
    """Asks the application whether there is room, before the body is read and after."""

    def __init__(self, let_in: LetIn, models: Models, bodies: Bodies, *, strict_fields: bool) -> None:
        """`strict_fields`: see `Reader`."""
        self._let_in = let_in
        self._models = models
        self._bodies = bodies
        self.reader = Reader(models, strict_fields=strict_fields)

    async def chat(self, request: Request) -> Call:
        """What it asks for; raises ApiError, InvalidRequest, Overloaded."""
        return await self.read(request, self.reader.chat)

    async def completion(self, request: Request) -> Call:
        """What it asks for; raises ApiError, InvalidRequest, Overloaded."""
        return await self.read(request, self.reader.completion)

    async def call(self, request: Request, kind: type[Body], to_call: Callable[[Body, Model], Call]) -> Call:
        """What `to_call` makes of a body of this kind; raises ApiError, InvalidRequest,
        Overloaded.
        """
        return await self.read(request, lambda body: self.reader.read(body, kind, to_call))

    async def question(self, request: Request, read: Callable[[bytes], Coroutine[Any, Any, Made]]) -> Made:
        """What `read` makes of the body of a request that generates nothing; raises as `read`."""
        self._let_in.check_room(request)
        return await self._bodies.read(request, read)

    async def read(self, request: Request, read: Read) -> Call:
        """What `read` makes of the body; raises ApiError, InvalidRequest, Overloaded."""
        caller = caller_of(request.scope)
        share = NO_KEY if caller is None else caller.share
        timeout = timeout_of(request.headers)
        is_new = await self._let_in.check(request, timeout, share)
        call = traced(await self._bodies.read(request, read), request.headers)
        tell_model(request.scope, call.served_by)
        if timeout is not None:
            call = call.within(timeout)
        if caller is not None:
            call = call.sent_by(caller)
        if is_new or not call.stream:  # nothing else can be resumed
            service = self._models[call.served_by].service
            is_let_in_there = is_new and len(self._models) == 1  # of several, another may have had the room
            service.check_room(call.load, call.timeout, share, is_let_in=is_let_in_there)
        return call
