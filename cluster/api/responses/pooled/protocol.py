"""The JSON of answers with numbers."""

from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType


class PromptUsage(Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class Embedding(Struct, frozen=True):
    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingList(Struct, frozen=True):
    id: str
    created: int
    model: str
    data: list[Embedding]
    usage: PromptUsage
    warnings: list[str] | UnsetType = UNSET  # ours: ignored fields of the request
    system_fingerprint: str | None = None  # ours: see `engine.checkpoint.fingerprint`
    weights_version: str | UnsetType = UNSET  # ours: that the engine was given in place of the model's own
    object: Literal["list"] = "list"


def raw(encoded: list[bytes]) -> list[Any]:
    """Items that are JSON already."""
    return [Raw(item) for item in encoded]


class ReturnedDocument(Struct, frozen=True):
    text: str


class RankedDocument(Struct, frozen=True):
    index: int  # among the request's documents
    relevance_score: float
    document: ReturnedDocument | UnsetType = UNSET  # with return_documents


class Ranking(Struct, frozen=True):
    id: str
    model: str
    results: list[RankedDocument]  # the most relevant first
    usage: PromptUsage
    warnings: list[str] | UnsetType = UNSET
    system_fingerprint: str | None = None
    weights_version: str | UnsetType = UNSET


class Score(Struct, frozen=True):
    index: int
    score: float
    object: Literal["score"] = "score"


class ScoreList(Struct, frozen=True):
    id: str
    created: int
    model: str
    data: list[Score]
    usage: PromptUsage
    warnings: list[str] | UnsetType = UNSET
    system_fingerprint: str | None = None
    weights_version: str | UnsetType = UNSET
    object: Literal["list"] = "list"
