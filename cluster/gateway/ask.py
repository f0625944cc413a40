"""Requests of the HTTP API that come by handle, such as the lines of batches."""

from starlette.types import ASGIApp

from cluster.api.edge.middleware import INNER
from cluster.api.errors import ApiError, error_body
from cluster.api.exchange import Answer, Exchange
from cluster.api.keys.key import Key
from cluster.api.keys.key_ring import KeyRing
from cluster.api.keys.limits import Caller

# Beside requests whose clients wait: a small share of the engines while both have requests
# waiting, and the last place where an engine's scheduling_policy is "priority".
WEIGHT = 0.1
PRIORITY = 100
NOBODY = Key("batch", b"", cache_namespace="batch")


def as_batch(key: Key | None) -> Key:
    """The key of requests that no client waits for: without limits, of low priority, and with the
    cached prefixes of `key`.
    """
    own = key or NOBODY
    return Key(
        own.name if key is None else f"{own.name}/batch",  # so that both have a turn
        own.digest,
        priority=max(own.priority, PRIORITY),
        weight=own.weight * WEIGHT,
        cache_namespace=own.cache_namespace,
    )


async def ask(app: ASGIApp, url: str, body: bytes, keys: KeyRing, name: str | None) -> Answer:
    """The application's answer to a POST of JSON, for the API key of that name."""
    key = None if name is None else keys.named(name)
    if name is not None and key is None:
        gone = ApiError(401, f"There is no API key {name!r} any more", code="invalid_api_key")
        return gone.status, {}, error_body(gone)
    own = as_batch(key)
    return await Exchange(app, url, body, {}, {INNER: Caller(own, None, own.share)}).whole()
