"""Reads the body of a request of the Messages API."""

import msgspec

from cluster.api.dialects.messages_api.answer import TokenCount
from cluster.api.dialects.messages_api.fields import MessagesPrompt, MessagesRequest
from cluster.api.dialects.messages_api.to_chat import NAMES, to_chat
from cluster.api.dialects.naming import named
from cluster.api.models.model import Model, Models
from cluster.api.requests.call import Call
from cluster.api.requests.chat.chat_call import chat_call
from cluster.api.requests.read import Reader


class MessagesReader:
    """All errors are found here, before a request reaches an engine."""

    def __init__(self, reader: Reader, models: Models) -> None:
        self._reader = reader
        self._models = models

    async def message(self, body: bytes) -> Call:
        """Raises ApiError, InvalidRequest."""
        asked = await self._reader.asked(body, MessagesRequest)
        call = await self._reader.work(body, lambda: self._call(asked.body, asked.model))
        return call.of_body(asked.model.name, asked.ignored, asked.digest if call.stream else b"")

    async def count(self, body: bytes) -> bytes:
        """How many tokens its prompt has, as JSON; raises ApiError, InvalidRequest, Overloaded."""
        asked = await self._reader.asked(body, MessagesPrompt)
        call = await self._reader.work(body, lambda: self._call(asked.body, asked.model))
        with named(NAMES):
            tokens = await self._models[asked.model.name].service.tokenize(call.requests[0], with_texts=False)
        return msgspec.json.encode(TokenCount(len(tokens.ids)))

    def _call(self, asked: MessagesPrompt, model: Model) -> Call:
        chat = to_chat(asked, model)
        with named(NAMES):
            return chat_call(chat, model, ends_with_context=True).named("msg")
