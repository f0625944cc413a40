"""The fields of the routes that answer with numbers; as strict as the others (`protocol`)."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from cluster.api.requests.fields import (
    MAX_PROMPTS,
    MAX_TIMEOUT,
    TEXT,
    CacheSalt,
    Inert,
    Inputs,
    NumKept,
    OneOrMoreTexts,
    Priority,
)
from cluster.api.requests.protocol import Addressed
from engine.sampling_params import INT64_MAX


class PooledRequest(Addressed):
    """The fields of all of them."""

    user: str | None = None  # without effect on the answer
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None
    timeout: float | None = Field(None, gt=0, le=MAX_TIMEOUT)
    # Of other servers, and not supported
    mm_processor_kwargs: Annotated[Any, Inert({})] = None


class EmbeddingRequest(PooledRequest):
    """The body of POST /v1/embeddings."""

    input: Inputs
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1, le=INT64_MAX)
    truncate_prompt_tokens: NumKept | None = None
    add_special_tokens: bool | None = None
    messages: Annotated[Any, Inert()] = None


class Document(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    text: str


_TEXT_OR_OBJECT = Discriminator(lambda value: "<document>" if isinstance(value, dict) else TEXT)
_AnyDocument = Annotated[Annotated[str, Tag(TEXT)] | Annotated[Document, Tag("<document>")], _TEXT_OR_OBJECT]


class RerankRequest(PooledRequest):
    """The body of POST /rerank, /v1/rerank and /v2/rerank."""

    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[list[_AnyDocument], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
    top_n: int | None = Field(None, ge=1, le=INT64_MAX)
    return_documents: bool | None = None
    instruction: str | None = None
    truncate_prompt_tokens: Annotated[Any, Inert()] = None
    max_tokens_per_doc: Annotated[Any, Inert()] = None
    max_chunks_per_doc: Annotated[Any, Inert()] = None
    rank_fields: Annotated[Any, Inert(["text"])] = None


class ScoreRequest(PooledRequest):
    """The body of POST /score and /v1/score."""

    text_1: OneOrMoreTexts
    text_2: OneOrMoreTexts
    instruction: str | None = None
    truncate_prompt_tokens: Annotated[Any, Inert()] = None
