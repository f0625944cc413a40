"""Requests of the HTTP API that come by handle, as the lines of batches do."""

import asyncio
import importlib
from typing import Any

from starlette.types import ASGIApp, Message

from cluster.api.edge.middleware import INNER
from cluster.api.errors import ApiError, error_body
from cluster.api.keys.key import Key
from cluster.api.keys.key_ring import KeyRing
from cluster.api.keys.limits import Caller
from cluster.api.service import Batches

# Beside others, who wait for their answers: a small share of the engines while both have requests
# waiting, and the last place where an engine's scheduling_policy is "priority".
WEIGHT = 0.1
PRIORITY = 100
NOBODY = Key("batch", b"", cache_namespace="batch")

Answer = tuple[int, dict[str, str], bytes]  # status, headers, body


def as_batch(key: Key | None) -> Key:
    """A key's requests that nobody waits for: without limits, of low priority, with the cached
    prefixes of the key.
    """
    own = key or NOBODY
    return Key(
        own.name if key is None else f"{own.name}/batch",  # so that both have a turn
        own.digest,
        priority=max(own.priority, PRIORITY),
        weight=own.weight * WEIGHT,
        cache_namespace=own.cache_namespace,
    )


def open_batches(files_path: str | None, app_name: str) -> Batches | None:
    """What keeps files and has batches run; imported only if it is used."""
    if files_path is None:
        return None
    batches: Any = importlib.import_module("cluster.batch.batches")
    made: Batches = batches.ServedStore(files_path, app_name)
    return made


async def ask(app: ASGIApp, url: str, body: bytes, keys: KeyRing, name: str | None) -> Answer:
    """What the application answers to a POST of JSON, as a request of the key of that name."""
    key = None if name is None else keys.named(name)
    if name is not None and key is None:
        gone = ApiError(401, f"There is no API key {name!r} any more", code="invalid_api_key")
        return gone.status, {}, error_body(gone)
    exchange = _Exchange(body)
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": url,
        "raw_path": url.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))],
        "client": None,
        "server": None,
        "extensions": {INNER: Caller(as_batch(key), None)},
    }
    await app(scope, exchange.receive, exchange.send)
    return exchange.status, exchange.headers, b"".join(exchange.parts)


class _Exchange:
    """The application's end of a connection that there is not."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.status = 500
        self.headers: dict[str, str] = {}
        self.parts: list[bytes] = []

    async def receive(self) -> Message:
        if self._body is None:
            await asyncio.Event().wait()  # the client stays until it is answered
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
        elif message["type"] == "http.response.body":
            self.parts.append(message.get("body", b""))
