"""A request that comes in: let in or refused, and read."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request

from cluster.api.keys.limits import caller_of
from cluster.api.model import Model
from cluster.api.requests.body import Bodies
from cluster.api.requests.call import Call, traced
from cluster.api.requests.read import Reader
from cluster.api.requests.validate import timeout_of
from cluster.api.service import Service
from engine.admission.queue_limits import Load
from engine.request import BYTES_PER_TOKEN

Read = Callable[[bytes], Coroutine[Any, Any, Call]]


class Incoming:
    """Asks the service whether there is room, before the body is read and after."""

    def __init__(self, service: Service, model: Model, bodies: Bodies, *, strict_fields: bool) -> None:
        """`strict_fields`: see `Reader`."""
        self._service = service
        self._model = model
        self._bodies = bodies
        self._reader = Reader(model, strict_fields=strict_fields)

    async def chat(self, request: Request) -> Call:
        """What it asks for; raises ApiError, InvalidRequest, Overloaded."""
        return await self._call(request, self._reader.chat)

    async def completion(self, request: Request) -> Call:
        """What it asks for; raises ApiError, InvalidRequest, Overloaded."""
        return await self._call(request, self._reader.completion)

    async def _call(self, request: Request, read: Read) -> Call:
        may_be_refused = "last-event-id" not in request.headers  # a stream that broke was let in before
        if may_be_refused:
            self._service.check_room(self._estimated_load(request))
        timeout = timeout_of(request.headers)
        call = traced(await self._bodies.read(request, read), request.headers)
        if timeout is not None:
            call = call.within(timeout)
        caller = caller_of(request.scope)
        if caller is not None:
            call = call.sent_by(caller)
        if may_be_refused:
            self._service.check_room(call.load, call.timeout, call.requests[0].share)
        return call

    def _estimated_load(self, request: Request) -> Load:
        """Before anything of the body is read; a prompt that exceeds the context is an error
        anyway.
        """
        length = request.headers.get("content-length", "")
        num_tokens = int(length) // BYTES_PER_TOKEN if length.isdecimal() else 0
        return Load(1, min(num_tokens, self._model.max_model_len))
