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
    now = int(time.time())

    def cards() -> dict[str, ModelCard]:
        found = {model.name: ModelCard(model.name, now, model.name, model.max_model_len)}
        for adapter in model.adapters:
            found[adapter.name] = ModelCard(adapter.name, now, adapter.folder, model.max_model_len, parent=model.name)
        return found

    @router.api_route("/v1/models", methods=READ)
    async def models() -> Response:
        return json_response(msgspec.json.encode(ModelList(list(cards().values()))))

    @router.api_route("/v1/models/{model_id:path}", methods=READ)
    async def one_model(request: Request) -> Response:
        model_id = request.path_params["model_id"]
        check_model(model_id, model)
        return json_response(msgspec.json.encode(cards()[model_id]))
