"""POST /v1/messages and /v1/messages/count_tokens: the Messages API of Anthropic."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from cluster.api.dialects.messages_api.answering import message_events, message_result
from cluster.api.dialects.messages_api.read import MessagesReader
from cluster.api.models.model import Models
from cluster.api.routes.answer import json_response
from cluster.api.routes.incoming import Incoming
from cluster.api.routes.outgoing import Outgoing


def add_routes(router: APIRouter, models: Models, incoming: Incoming, outgoing: Outgoing) -> None:
    reader = MessagesReader(incoming.reader, models)

    @router.post("/v1/messages")
    async def messages(request: Request) -> Response:
        call = await incoming.read(request, reader.message)
        return await outgoing.answer(request, call, message_events, message_result)

    @router.post("/v1/messages/count_tokens")
    async def count_tokens(request: Request) -> Response:
        async def read(body: bytes) -> Response:
            return json_response(await reader.count(body))

        return await incoming.question(request, read)
