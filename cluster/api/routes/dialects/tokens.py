"""POST /tokenize and /detokenize and GET /tokenizer_info, as vLLM has them."""

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from cluster.api.dialects.tokens import DetokenizeRequest, TokenizeRequest, checked_ids, prompt_of
from cluster.api.models.model import Models
from cluster.api.requests.sampling import find_model
from cluster.api.responses.protocol import Detokenized, Tokenized
from cluster.api.routes.answer import READ, json_response
from cluster.api.routes.incoming import Incoming


def add_routes(router: APIRouter, models: Models, incoming: Incoming) -> None:
    @router.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        async def read(body: bytes) -> Response:
            asked, model, *_ = await incoming.reader.asked(body, TokenizeRequest)
            prompt = await incoming.reader.work(body, lambda: prompt_of(asked, model))
            tokens = await models[model.name].service.tokenize(prompt, with_texts=bool(asked.return_token_strs))
            answer = Tokenized(len(tokens.ids), model.max_model_len, tokens.ids, tokens.texts)
            return json_response(msgspec.json.encode(answer))

        return await incoming.question(request, read)

    @router.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        async def read(body: bytes) -> Response:
            asked, model, *_ = await incoming.reader.asked(body, DetokenizeRequest)
            text = await models[model.name].service.detokenize(checked_ids(asked, model))
            return json_response(msgspec.json.encode(Detokenized(text)))

        return await incoming.question(request, read)

    @router.api_route("/tokenizer_info", methods=READ)
    async def tokenizer_info(request: Request) -> Response:
        model = find_model(dict(request.query_params), models)
        settings = await models[model.name].service.tokenizer_settings()
        return json_response(msgspec.json.encode(settings))
