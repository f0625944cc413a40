"""POST /v1/chat/completions and /v1/completions."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from cluster.api.responses.chat import chat_events, chat_result
from cluster.api.responses.completions import completion_events, completion_result
from cluster.api.routes.incoming import Incoming
from cluster.api.routes.outgoing import Outgoing


def add_routes(router: APIRouter, incoming: Incoming, outgoing: Outgoing) -> None:
    async def chat_completions(request: Request) -> Response:
        call = await incoming.chat(request)
        return await outgoing.answer(request, call, chat_events, chat_result)

    async def completions(request: Request) -> Response:
        call = await incoming.completion(request)
        return await outgoing.answer(request, call, completion_events, completion_result)

    # Without FastAPI's reading of arguments, of which there are none: it costs as much as a check.
    router.add_route("/v1/chat/completions", chat_completions, methods=["POST"])
    router.add_route("/v1/completions", completions, methods=["POST"])
