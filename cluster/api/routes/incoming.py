"""Admits or rejects an incoming request, and reads it."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request

from cluster.api.arrivals import asks_for_rest, estimated_load, is_let_in, tell_model
from cluster.api.errors import ApiError
from cluster.api.keys.limits import caller_of
from cluster.api.models.model import Model, Models
from cluster.api.requests.body import Bodies
from cluster.api.requests.call import Call, traced
from cluster.api.requests.read import Body, Reader
from cluster.api.requests.validate import timeout_of
from cluster.api.responses.resuming.streams import StreamStore, parse_event_id, unknown_stream
from cluster.api.service import Application
from engine.errors import Overloaded
from engine.request import NO_KEY, Share

Read = Callable[[bytes], Coroutine[Any, Any, Call]]
Made = TypeVar("Made")


class Incoming:
    """Asks the application whether there is room, before the body is read and after."""

    def __init__(
        self,
        application: Application,
        models: Models,
        bodies: Bodies,
        streams: StreamStore | None = None,
        *,
        strict_fields: bool,
    ) -> None:
        """`streams`: those that may be resumed. `strict_fields`: see `Reader`."""
        self._application = application
        self._models = models
        self._bodies = bodies
        self._streams = streams
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
        self._check_room(request, None, NO_KEY)
        return await self._bodies.read(request, read)

    async def read(self, request: Request, read: Read) -> Call:
        """What `read` makes of the body; raises ApiError, InvalidRequest, Overloaded."""
        caller = caller_of(request.scope)
        share = NO_KEY if caller is None else caller.share
        timeout = timeout_of(request.headers)
        streams = self._streams if asks_for_rest(request.scope) else None
        if streams is not None:
            await self._check_rest(request, timeout, share, streams)
        elif not is_let_in():
            self._check_room(request, timeout, share)
        call = traced(await self._bodies.read(request, read), request.headers)
        tell_model(request.scope, call.served_by)
        if timeout is not None:
            call = call.within(timeout)
        if caller is not None:
            call = call.sent_by(caller)
        if streams is None or not call.stream:  # nothing else can be resumed
            service = self._models[call.served_by].service
            is_let_in_there = streams is None and len(self._models) == 1  # of several, another may have had the room
            service.check_room(call.load, call.timeout, share, is_let_in=is_let_in_there)
        return call

    async def _check_rest(self, request: Request, seconds: float | None, share: Share, streams: StreamStore) -> None:
        """Without room, raises ApiError if there is no such stream: nothing was let in before."""
        try:
            self._check_room(request, seconds, share)
        except (Overloaded, ApiError):
            last_event_id = request.headers["last-event-id"]
            request_id, _ = parse_event_id(last_event_id)
            if await streams.find(request_id) is None:
                raise unknown_stream(last_event_id) from None

    def _check_room(self, request: Request, seconds: float | None, share: Share) -> None:
        load = estimated_load(request.headers, self._models.max_model_len)
        self._application.check_room(load, seconds, share=share)
