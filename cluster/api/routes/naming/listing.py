"""GET /v1/models and /v1/models/MODEL, to Anthropic's clients in their form."""

import time

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from cluster.api.dialects.messages_api.models import ModelInfo, ModelPage
from cluster.api.models.model import Model, Models
from cluster.api.requests.sampling import unknown_model
from cluster.api.responses.protocol import ModelCard, ModelList
from cluster.api.routes.answer import READ, json_response
from cluster.api.scopes import speaks_anthropic


def add_routes(router: APIRouter, models: Models) -> None:
    now = int(time.time())

    def cards() -> dict[str, ModelCard]:
        found = {}
        for model, *_ in models:
            name, max_len = model.name, model.max_model_len
            found[name] = ModelCard(name, now, name, max_len)
            found |= {
                each.name: ModelCard(each.name, now, each.folder, max_len, parent=name) for each in model.adapters
            }
        for name, alias in models.aliases.items():
            those = {model for model, _ in alias.shares}
            if there := [model for model, *_ in models if model.name in those]:
                found[name] = _alias_card(name, now, there)
        return found

    @router.api_route("/v1/models", methods=READ)
    async def all_models(request: Request) -> Response:
        found = list(cards().values())
        told = ModelPage.of(found) if speaks_anthropic(request.scope) else ModelList(found)
        return json_response(msgspec.json.encode(told))

    @router.api_route("/v1/models/{model_id:path}", methods=READ)
    async def one_model(request: Request) -> Response:
        model_id = request.path_params["model_id"]
        card = cards().get(model_id)
        if card is None:
            models.named(model_id, {})  # raises Unavailable if it has no engine yet
            raise unknown_model(model_id, models)
        return json_response(msgspec.json.encode(ModelInfo.of(card) if speaks_anthropic(request.scope) else card))


def _alias_card(name: str, now: int, models: list[Model]) -> ModelCard:
    """With the context that every model has which may answer."""
    return ModelCard(name, now, ", ".join(model.name for model in models), min(model.max_model_len for model in models))
