"""The adapters that requests may name as their model; they change while the server runs."""

from collections.abc import Iterable, Iterator, Mapping

from engine.request import Adapter

ADAPTER_PATHS = frozenset(["/v1/load_lora_adapter", "/v1/unload_lora_adapter"])  # that change them for everybody


class Adapters:
    """Of one gateway's model, by name: those that the server was started with, and changes."""

    def __init__(self, given: Iterable[Adapter] = ()) -> None:
        self._given = {adapter.name: adapter for adapter in given}
        self._all = dict(self._given)

    def __iter__(self) -> Iterator[Adapter]:
        return iter(self._all.values())

    def find(self, name: str | None) -> Adapter | None:
        return None if name is None else self._all.get(name)

    def is_given(self, name: str) -> bool:
        """Whether the server was started with one of that name."""
        return name in self._given

    def change(self, changes: Mapping[str, Adapter | None]) -> None:
        """All changes since the start: None for a name that is unloaded."""
        changed = {**self._given, **changes}
        self._all = {name: adapter for name, adapter in changed.items() if adapter is not None}
