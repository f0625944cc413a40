"""Stores which adapters were loaded and unloaded, for all gateways: in Ray's own store on the head
node, which outlives each gateway.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Iterator
from typing import Protocol
from urllib.parse import quote

import msgspec
from ray.exceptions import RayError
from ray.experimental import internal_kv

from cluster.api.errors import Unavailable
from cluster.owner import Owner
from engine.request import Adapter

NAMESPACE = b"squadron-adapters"
RETRY_AFTER = 5.0  # seconds


class Change(msgspec.Struct, frozen=True):
    """Of an adapter's name."""

    adapter: Adapter | None  # None: it was unloaded
    load: str = ""  # drawn by who loads it: another gateway may load the same one


class AdapterStore(Protocol):
    """The last change of each adapter name since the application was started."""

    async def put(self, name: str, change: Change) -> None:
        """Raises Unavailable."""

    async def forget(self, name: str) -> None:
        """That it was ever changed. Raises Unavailable."""

    async def read(self) -> dict[str, Change]:
        """Raises Unavailable."""


class RayAdapterStore:
    """An application's."""

    def __init__(self, app_name: str, owner: Owner, model: str) -> None:
        """`owner`: of the application, so that the next one of its name begins anew; `model`: the
        name of the one that the adapters are of.
        """
        run = hashlib.sha256(owner.token.encode()).hexdigest()[:16]
        self._prefix = f"{app_name}/{run}/{quote(model, safe='')}/".encode()

    async def put(self, name: str, change: Change) -> None:
        key, value = self._prefix + name.encode(), msgspec.json.encode((change.adapter, change.load))
        with _answering():
            await asyncio.to_thread(internal_kv._internal_kv_put, key, value, True, namespace=NAMESPACE)

    async def forget(self, name: str) -> None:
        with _answering():
            await asyncio.to_thread(internal_kv._internal_kv_del, self._prefix + name.encode(), namespace=NAMESPACE)

    async def read(self) -> dict[str, Change]:
        with _answering():
            return await asyncio.to_thread(self._read)

    def _read(self) -> dict[str, Change]:
        found = dict[str, Change]()
        for key in internal_kv._internal_kv_list(self._prefix, namespace=NAMESPACE):
            value = internal_kv._internal_kv_get(key, namespace=NAMESPACE)
            if value is not None:
                found[key.removeprefix(self._prefix).decode()] = _decoded(value)
        return found


def _decoded(value: bytes) -> Change:
    """Without a load's id, it was written by an earlier version."""
    told = msgspec.json.decode(value, type=tuple[Adapter | None, str] | Adapter | None)
    return Change(*told) if isinstance(told, tuple) else Change(told)


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Raises Unavailable where Ray does not answer."""
    try:
        yield
    except (RayError, OSError):
        message = "Ray's head, which knows the adapters, does not answer now"
        raise Unavailable(message, code="not_ready", retry_after=RETRY_AFTER) from None
