"""Tensors in Ray's object store, each fetched when it is read."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import ray
from ray import ObjectRef
from ray.exceptions import RayError

from engine.errors import InvalidConfig, in_a_line

FETCH_SECONDS = 300.0  # for one object, which may come from another node


class ObjectTensors(Mapping[str, Any]):
    """By name. Pickled, it still refers to the objects, which live as long as the process that put
    them there.
    """

    def __init__(self, refs: Mapping[str, "ObjectRef[Any]"]) -> None:
        self._refs = dict(refs)

    def __getitem__(self, name: str) -> Any:
        """Raises InvalidConfig if Ray does not have it any more."""
        ref = self._refs[name]
        try:
            return ray.get(ref, timeout=FETCH_SECONDS)
        except (RayError, TimeoutError) as error:
            raise InvalidConfig(
                f"tensor {name} cannot be fetched from Ray's object store: {in_a_line(error)}"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)


class NodeTensors(Mapping[str, Any]):
    """By name, of copies that several nodes have: this one's own, or else any other's."""

    def __init__(self, copies: Mapping[str, Mapping[str, "ObjectRef[Any]"]]) -> None:
        """By the ids of nodes."""
        self._copies = {node: ObjectTensors(refs) for node, refs in copies.items()}
        self._names = tuple(next(iter(self._copies.values())))

    def __getitem__(self, name: str) -> Any:
        """Raises InvalidConfig if Ray has none of them any more."""
        here = ray.get_runtime_context().get_node_id()
        *others, last = sorted(self._copies, key=lambda node: node == here, reverse=True)
        for node in others:
            with contextlib.suppress(InvalidConfig):
                return self._copies[node][name]
        return self._copies[last][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def put_tensors(tensors: Mapping[str, Any]) -> ObjectTensors:
    """Copies of them, owned by this process."""
    return ObjectTensors({name: ray.put(value) for name, value in tensors.items()})
