"""The models as Anthropic's clients list them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from msgspec import Struct

from cluster.api.responses.protocol import ModelCard


class ModelInfo(Struct, frozen=True):
    id: str
    display_name: str
    created_at: datetime
    max_input_tokens: int
    max_tokens: int  # of an answer; both together may have no more than either
    type: Literal["model"] = "model"
    lifecycle: Literal["active"] = "active"
    capabilities: None = None
    deprecated_at: None = None
    line: None = None
    retires_at: None = None

    @classmethod
    def of(cls, card: ModelCard) -> "ModelInfo":
        created_at = datetime.fromtimestamp(card.created, UTC)
        return cls(card.id, card.id, created_at, card.max_model_len, card.max_model_len)


class ModelPage(Struct, frozen=True):
    """All of them: there is no second page."""

    data: list[ModelInfo]
    first_id: str | None
    last_id: str | None
    has_more: Literal[False] = False

    @classmethod
    def of(cls, cards: Sequence[ModelCard]) -> "ModelPage":
        data = [ModelInfo.of(card) for card in cards]
        return cls(data, data[0].id if data else None, data[-1].id if data else None)
