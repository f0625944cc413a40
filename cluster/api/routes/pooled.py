"""POST /v1/embeddings, /v1/rerank (and /v2/rerank, as Cohere's client has it) and /v1/score; the
last two also without a version, as vLLM has them.
"""

from fastapi import APIRouter, Request
from starlette.responses import Response

from cluster.api.requests.pooled.embeddings import embedding_call
from cluster.api.requests.pooled.protocol import EmbeddingRequest, RerankRequest, ScoreRequest
from cluster.api.requests.pooled.ranking import rerank_call, score_call
from cluster.api.responses.pooled.answers import embeddings_result, ranking_result, scores_result
from cluster.api.routes.incoming import Incoming
from cluster.api.routes.outgoing import Outgoing


def add_routes(router: APIRouter, incoming: Incoming, outgoing: Outgoing) -> None:
    @router.post("/v1/embeddings")
    async def embeddings(request: Request) -> Response:
        call = await incoming.call(request, EmbeddingRequest, embedding_call)
        return await outgoing.whole(request, call, embeddings_result)

    @router.post("/rerank")
    @router.post("/v1/rerank")
    @router.post("/v2/rerank")
    async def rerank(request: Request) -> Response:
        call = await incoming.call(request, RerankRequest, rerank_call)
        return await outgoing.whole(request, call, ranking_result)

    @router.post("/score")
    @router.post("/v1/score")
    async def score(request: Request) -> Response:
        call = await incoming.call(request, ScoreRequest, score_call)
        return await outgoing.whole(request, call, scores_result)
