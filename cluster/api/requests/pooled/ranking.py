"""From the bodies of POST /v1/rerank and /v1/score to a `Call`: each document is scored in a
separate prompt.
"""

from cluster.api.answers.form import WantedRanking, WantedScores
from cluster.api.models.model import Model
from cluster.api.requests.call import Call
from cluster.api.requests.pooled.pooled_call import pooled_call
from cluster.api.requests.pooled.protocol import Document, RerankRequest, ScoreRequest
from cluster.api.requests.sampling import check_generates
from engine.errors import InvalidRequest
from engine.pooling import Pooling
from engine.text.judging import NO_ANSWERS, judging_prompt


def rerank_call(request: RerankRequest, model: Model) -> Call:
    """Raises InvalidRequest."""
    pooling = _judging(model)
    texts = [each.text if isinstance(each, Document) else each for each in request.documents]
    prompts = {
        f"documents[{index}]": judging_prompt(request.query, text, request.instruction)
        for index, text in enumerate(texts)
    }
    wanted = WantedRanking(tuple(texts) if request.return_documents else None, request.top_n)
    return pooled_call("rerank", request, prompts, model, pooling, wanted, add_special_tokens=False)


def score_call(request: ScoreRequest, model: Model) -> Call:
    """Raises InvalidRequest."""
    pooling = _judging(model)
    is_list = isinstance(request.text_2, list)
    queries, documents = _list(request.text_1), _list(request.text_2)
    if len(queries) not in (1, len(documents)):
        raise InvalidRequest(
            f"text_1 has {len(queries)} texts and text_2 {len(documents)}; both have as many, or text_1 has one",
            param="text_1",
        )
    queries = queries * len(documents) if len(queries) == 1 else queries
    prompts = {
        f"text_2[{index}]" if is_list else "text_2": judging_prompt(query, document, request.instruction)
        for index, (query, document) in enumerate(zip(queries, documents, strict=True))
    }
    return pooled_call("score", request, prompts, model, pooling, WantedScores(), add_special_tokens=False)


def _list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def _judging(model: Model) -> Pooling:
    check_generates(model)
    if model.judging is None:
        raise InvalidRequest(NO_ANSWERS.capitalize(), param="model", code="unsupported_value")
    return model.judging
