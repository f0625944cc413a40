"""From the body of POST /v1/embeddings to a `Call`."""

from typing import cast

from cluster.api.answers.form import WantedEmbeddings
from cluster.api.model import Model
from cluster.api.requests.call import Call
from cluster.api.requests.pooled.pooled_call import pooled_call
from cluster.api.requests.pooled.protocol import EmbeddingRequest
from engine.pooling import check_dimensions


def embedding_call(request: EmbeddingRequest, model: Model) -> Call:
    """Raises InvalidRequest."""
    check_dimensions(request.dimensions, model.hidden_size)
    texts = _inputs(request)
    names = ["input"] if len(texts) == 1 else [f"input[{index}]" for index in range(len(texts))]
    wanted = WantedEmbeddings(request.encoding_format == "base64", request.dimensions)
    return pooled_call("embd", request, dict(zip(names, texts, strict=True)), model, model.embedding.pooling, wanted)


def _inputs(request: EmbeddingRequest) -> list[str | list[int]]:
    inputs = request.input
    if isinstance(inputs, str):
        return [inputs]
    if isinstance(inputs[0], int):
        return [inputs]
    return cast(list[str | list[int]], inputs)
