"""Reads the body of a request of the Responses API."""

import msgspec

from cluster.api.dialects.naming import named
from cluster.api.dialects.responses_api.answer import InputTokens
from cluster.api.dialects.responses_api.fields import ResponsesRequest
from cluster.api.dialects.responses_api.store import Messages, Shelf
from cluster.api.dialects.responses_api.to_chat import NAMES, as_messages, to_chat
from cluster.api.dialects.responses_api.whole import Whole
from cluster.api.models.model import Model, Models
from cluster.api.requests.call import Call
from cluster.api.requests.chat.chat_call import chat_call
from cluster.api.requests.read import Asked, Reader
from engine.errors import InvalidRequest


class ResponseReading:
    """Of one request, which may go on from a stored response."""

    whole: Whole  # what the answer says beside its output; there once the body has been read

    def __init__(self, reader: Reader, shelf: Shelf) -> None:
        self._reader = reader
        self._shelf = shelf

    async def read(self, body: bytes) -> Call:
        """What it asks for; raises ApiError, InvalidRequest."""
        asked, model, ignored, digest = found = await self._reader.asked(body, ResponsesRequest)
        if asked.store and not self._shelf.is_there:
            raise InvalidRequest("This server stores no responses", param="store", code="unsupported_value")
        is_stored = self._shelf.is_there and asked.store is not False
        if is_stored:
            self._shelf.wake()
        before, model = await self._earlier(found)
        items = await self._shelf.items(asked.input)
        messages, call = await self._reader.work(body, lambda: self._call(asked, [*before, *as_messages(items)], model))
        self.whole = Whole(asked, messages, self._shelf if is_stored else None)
        return call.of_body(model.name, ignored, digest if call.stream else b"")

    async def count(self, body: bytes, models: Models) -> bytes:
        """How many tokens its prompt has, as JSON; raises ApiError, InvalidRequest, Overloaded."""
        found = await self._reader.asked(body, ResponsesRequest)
        before, model = await self._earlier(found)
        items = await self._shelf.items(found.body.input)
        _, call = await self._reader.work(body, lambda: self._call(found.body, [*before, *as_messages(items)], model))
        with named(NAMES):
            tokens = await models[model.name].service.tokenize(call.requests[0], with_texts=False)
        return msgspec.json.encode(InputTokens(len(tokens.ids)))

    async def _earlier(self, found: Asked[ResponsesRequest]) -> tuple[Messages, Model]:
        """The conversation before, and the model that goes on with it."""
        earlier = await self._shelf.earlier(found.body.previous_response_id)
        if earlier is None:
            return [], found.model
        return earlier.messages, self._reader.going_on(found, earlier.served_by)

    def _call(self, asked: ResponsesRequest, messages: Messages, model: Model) -> tuple[Messages, Call]:
        """The conversation without instructions, and the call."""
        chat = to_chat(asked, messages)
        with named(NAMES):
            return messages, chat_call(chat, model).named("resp")
