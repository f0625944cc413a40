"""From the body of POST /v1/embeddings to a `Call`."""

from typing import cast

from cluster.api.answers.form import WantedEmbeddings
from cluster.api.models.model import Model
from cluster.api.requests.call import Call
from cluster.api.requests.pooled.pooled_call import pooled_call
from cluster.api.requests.pooled.protocol import EmbeddingRequest
from cluster.api.requests.sampling import check_length
from engine.pooling import check_dimensions


def embedding_call(request: EmbeddingRequest, model: Model) -> Call:
    """Raises InvalidRequest."""
    check_dimensions(request.dimensions, model.hidden_size)
    texts = _inputs(request)
    names = ["input"] if len(texts) == 1 else [f"input[{index}]" for index in range(len(texts))]
    wanted = WantedEmbeddings(request.encoding_format == "base64", request.dimensions)
    return pooled_call(
        "embd",
        request,
        dict(zip(names, texts, strict=True)),
        model,
        model.embedding.pooling,
        wanted,
        max_prompt_tokens=_kept(request.truncate_prompt_tokens, model),
        add_special_tokens=request.add_special_tokens,
    )


def _kept(asked: int | None, model: Model) -> int | None:
    """Tokens of a longer input: its last ones; -1 stands for the context."""
    if asked is not None and asked > 0:
        check_length(asked, model, param="truncate_prompt_tokens")
    return model.max_model_len if asked == -1 else asked


def _inputs(request: EmbeddingRequest) -> list[str | list[int]]:
    inputs = request.input
    if isinstance(inputs, str):
        return [inputs]
    if isinstance(inputs[0], int):
        return [inputs]
    return cast(list[str | list[int]], inputs)
