"""The model's properties that the HTTP layer needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.api.adapters import Adapters
from cluster.api.answers.form import ToolFormat
from engine.pooling import Embedding, Pooling
from engine.request import Adapter
from engine.text.text_limit import TextLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    name: str
    max_model_len: int  # tokens, prompt and output together
    vocab_size: int  # width of the logits
    default_sampling: Mapping[str, Any] = field(default_factory=dict)  # for fields that a request omits
    special_ids: frozenset[int] = frozenset()  # tokens that a text does not show by default
    tool_format: ToolFormat | None = None  # in which it writes calls; None: its chat template takes no tools
    reasoning_ids: tuple[int, int] | None = None  # the tokens at both ends of its reasoning
    hidden_size: int = 0  # numbers of an embedding
    embedding: Embedding = field(default_factory=Embedding)  # how it makes them
    judging: Pooling | None = None  # what says how well a document fits; None: it cannot tell
    text_limit: TextLimit | None = None  # of a prompt; None: only the engine can tell what fits
    adapters: Adapters = field(default_factory=Adapters)  # that requests name in its place

    def adapter(self, name: str | None) -> Adapter | None:
        """Of that name; None if it is the model itself, or no model here."""
        return self.adapters.find(name)
