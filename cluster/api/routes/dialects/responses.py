"""/v1/responses: the Responses API of OpenAI."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from cluster.api.dialects.responses_api.answering import ResponseAnswering
from cluster.api.dialects.responses_api.read import ResponseReading
from cluster.api.dialects.responses_api.store import ResponseStore, Shelf
from cluster.api.errors import ApiError
from cluster.api.keys.limits import caller_of
from cluster.api.models.model import Models
from cluster.api.routes.answer import READ, json_response
from cluster.api.routes.incoming import Incoming
from cluster.api.routes.outgoing import Outgoing


def add_routes(
    router: APIRouter, models: Models, incoming: Incoming, outgoing: Outgoing, store: ResponseStore | None
) -> None:
    """Without a store nothing is stored."""

    def shelf(request: Request) -> Shelf:
        return Shelf(store, _owner(request))

    @router.post("/v1/responses")
    async def create(request: Request) -> Response:
        reading = ResponseReading(incoming.reader, shelf(request))
        call = await incoming.read(request, reading.read)
        answering = ResponseAnswering(reading.whole)
        return await outgoing.answer(request, call, answering.events, answering.result)

    @router.post("/v1/responses/input_tokens")
    async def input_tokens(request: Request) -> Response:
        async def read(body: bytes) -> Response:
            return json_response(await ResponseReading(incoming.reader, shelf(request)).count(body, models))

        return await incoming.question(request, read)

    @router.api_route("/v1/responses/{response_id}", methods=READ)
    async def stored(request: Request) -> Response:
        if request.query_params.get("stream", "false").lower() not in ("false", "0"):
            message = "A stored response is not streamed: leave stream out"
            raise ApiError(400, message, code="unsupported_parameter", param="stream")
        return json_response(await shelf(request).response(request.path_params["response_id"]))

    @router.delete("/v1/responses/{response_id}")
    async def delete(request: Request) -> Response:
        return json_response(await shelf(request).forget(request.path_params["response_id"]))


def _owner(request: Request) -> bytes:
    """Of what a request stores: its key, of which only the digest is known."""
    caller = caller_of(request.scope)
    return b"" if caller is None else caller.key.digest
