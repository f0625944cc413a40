"""GET /v1/models and /v1/models/MODEL."""

import time

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from cluster.api.model import Model
from cluster.api.requests.sampling import check_model
from cluster.api.responses.protocol import ModelCard, ModelList
from cluster.api.routes.answer import READ, json_response


def add_routes(router: APIRouter, model: Model) -> None:
    card = ModelCard(model.name, int(time.time()), model.name, model.max_model_len)

    @router.api_route("/v1/models", methods=READ)
    async def models() -> Response:
        return json_response(msgspec.json.encode(ModelList([card])))

    @router.api_route("/v1/models/{model_id:path}", methods=READ)
    async def one_model(request: Request) -> Response:
        check_model(request.path_params["model_id"], model)
        return json_response(msgspec.json.encode(card))
