"""How a part of an answer gets to its connection without a task: a connection of ours offers it
among the `extensions` of the request's scope. Under any other server there is only ASGI's `send`.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.types import Scope

EXTENSION = "squadron.write"
# Writes a part of the body at once. False if it may not now, and nothing is written: the client
# reads too slowly or has gone, or the answer has not begun.
Write = Callable[[bytes], bool]


class Offer:
    """A connection's, good in its own event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, write: Write) -> None:
        self.loop = loop
        self.write = write

    def __reduce__(self) -> tuple[Any, ...]:
        """As None: Serve's proxies send their scopes to gateways, which do not have the
        connection.
        """
        return type(None), ()


def offer(scope: Scope, loop: asyncio.AbstractEventLoop, write: Write) -> None:
    """Offer `write`, which may be called in that event loop only."""
    scope.setdefault("extensions", {})[EXTENSION] = Offer(loop, write)


def offered(scope: Scope) -> Write | None:
    """What the connection offers, if it is of the running event loop: Serve may have requests
    answered in another thread than the one that has the connections, or in another process.
    """
    found = scope.get("extensions", {}).get(EXTENSION)
    return found.write if isinstance(found, Offer) and found.loop is asyncio.get_running_loop() else None
