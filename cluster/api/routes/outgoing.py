"""Sends the answer to a call: complete, or as a stream of events."""

from collections.abc import AsyncGenerator, Callable, Coroutine

from starlette.requests import Request
from starlette.responses import Response

from cluster.api.connection.disconnect import unless_disconnected
from cluster.api.models.model import Model, Models
from cluster.api.requests.call import Call
from cluster.api.responses.generation import Update, run
from cluster.api.responses.resuming.resume import Events, Resumable
from cluster.api.responses.resuming.streams import StreamStore
from cluster.api.responses.stream import EventStream
from cluster.api.routes.answer import json_response

Result = Callable[[Call, Model, AsyncGenerator[Update, None]], Coroutine[None, None, bytes]]


class Outgoing:
    """Written by a route's functions: `events` for a stream, `result` for a complete answer."""

    def __init__(self, models: Models, store: StreamStore | None) -> None:
        """`store`: of streams that clients may resume."""
        self._models = models
        self._streams = Resumable(models, store)

    async def answer(self, request: Request, call: Call, events: Events, result: Result) -> Response:
        """Raises ApiError, InvalidRequest, SquadronError."""
        if call.stream:
            made, reader = await self._streams.events(request, call, events)
            return EventStream(made, call.headers, reader)
        return await self.whole(request, call, result)

    async def whole(self, request: Request, call: Call, result: Result) -> Response:
        """As `answer`, of a call that cannot be streamed."""
        model, service, *_ = self._models[call.served_by]
        answering = result(call, model, run(service, call))
        return json_response(await unless_disconnected(request.receive, answering), call.headers)
