"""The models of an application: what the HTTP layer needs to know of each, and which one a request
names.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from cluster.api.answers.form import ToolFormat
from cluster.api.errors import Unavailable
from cluster.api.models.adapters import Adapters
from cluster.api.models.aliases import Alias
from cluster.api.models.controls import Controller
from cluster.api.service import AdapterLoader, Service
from engine.pooling import Embedding, Pooling
from engine.request import Adapter
from engine.text.text_limit import TextLimit

RETRY_AFTER = 5.0  # seconds


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


class ServedModel(NamedTuple):
    model: Model
    service: Service  # answers its requests
    loader: AdapterLoader | None = None  # changes its adapters; None: nobody may
    controller: Controller | None = None  # of its engines; None: they cannot be reached but by requests


class Models:
    """At least one; the first answers requests that name none."""

    def __init__(
        self,
        served: Sequence[ServedModel] = (),
        aliases: Mapping[str, Alias] | None = None,
        *,
        names: Sequence[str] = (),
        adapters: Mapping[str, str] | None = None,
        can_load: bool = False,
    ) -> None:
        """`aliases`: other names, each of one of the models or of several by weight. `names`: of
        all models, in order, where some are to be added; `adapters`: the model of each adapter that
        these begin with; `can_load`: whether any of these takes adapters.
        """
        self._names = tuple(names) or tuple(each.model.name for each in served)
        self._served = {each.model.name: each for each in served}
        self._can_load = can_load
        self._adapters = dict(adapters or {})
        self.aliases = dict(aliases or {})

    def add(self, served: ServedModel) -> None:
        """One of `names`, which has an engine now."""
        self._served[served.model.name] = served

    @classmethod
    def one(cls, service: Service, model: Model, loader: AdapterLoader | None = None) -> Self:
        return cls([ServedModel(model, service, loader)])

    @property
    def own_names(self) -> tuple[str, ...]:
        """Of all models, also of those that have no engine yet."""
        return self._names

    def __iter__(self) -> Iterator[ServedModel]:
        return (self._served[name] for name in self._names if name in self._served)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> ServedModel:
        """By its own name. Raises Unavailable if it has had no engine yet."""
        if name not in self._served:
            message = f"The model {name} has no engine yet"
            raise Unavailable(message, code="not_ready", retry_after=RETRY_AFTER)
        return self._served[name]

    def find(self, fields: Mapping[str, Any]) -> Model | None:
        """The model for a request with these fields, which need not be valid; None if there is none
        of the name that it gives. Raises Unavailable.
        """
        name = fields.get("model")
        return self.named(name, fields) if isinstance(name, str) and name else self[self._names[0]].model

    def named(self, name: str, fields: Mapping[str, Any]) -> Model | None:
        """As `find`, by a name that may be an adapter's or an alias."""
        if name in self._names:
            return self[name].model
        for served in self:
            if (adapter := served.model.adapter(name)) is not None:
                # It may be unloaded in the event loop while a thread reads the rest of the request.
                return replace(served.model, adapters=Adapters([adapter]))
        self.check_joined(name)
        return self[self.aliases[name].choose(fields)].model if name in self.aliases else None

    def check_joined(self, adapter: str) -> None:
        """Raises Unavailable if one of that name is of a model that has had no engine yet."""
        model = self._adapters.get(adapter)
        if model is not None and model not in self._served:
            self[model]

    def going_on(self, name: str | None, served_by: str) -> Model | None:
        """Of an alias of that name: the model that has answered in the conversation before, if the
        alias still stands for it. Raises Unavailable.
        """
        alias = self.aliases.get(name or "")
        is_of_it = alias is not None and any(model == served_by for model, _ in alias.shares)
        return self[served_by].model if is_of_it else None

    def names(self) -> Iterator[str]:
        """That requests may give."""
        for name in self._names:
            yield name
            if name in self._served:
                yield from (adapter.name for adapter in self._served[name].model.adapters)
            else:
                yield from (adapter for adapter, model in self._adapters.items() if model == name)
        yield from self.aliases

    @property
    def can_load(self) -> bool:
        """Whether adapters of a model may be loaded."""
        return self._can_load or any(served.loader is not None for served in self)

    @property
    def max_model_len(self) -> int:
        """The longest context."""
        return max(served.model.max_model_len for served in self)
