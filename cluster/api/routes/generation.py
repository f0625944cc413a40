"""POST /v1/chat/completions and /v1/completions."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from cluster.api.responses.chat import chat_events, chat_result
from cluster.api.responses.completions import completion_events, completion_result
from cluster.api.routes.incoming import Incoming
from cluster.api.routes.outgoing import Outgoing


def add_routes(router: APIRouter, incoming: Incoming, outgoing: Outgoing) -> None:
    @router.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        call = await incoming.chat(request)
        return await outgoing.answer(request, call, chat_events, chat_result)

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        call = await incoming.completion(request)
        return await outgoing.answer(request, call, completion_events, completion_result)
