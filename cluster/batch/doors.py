"""How a batch reaches a server: by HTTP, or by an application's handle."""

from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from cluster.batch.files.lines import Reply
from engine.errors import in_a_line

CONNECT_SECONDS = 30.0
SILENCE_SECONDS = 3600.0  # for the whole of an answer
UNAUTHORIZED = 401
_REQUEST_ID = "x-request-id"
_RETRY_AFTER = "retry-after"


class Unreachable(Exception):
    """Nothing answered; another try may succeed."""


class KeyRefused(Exception):
    """The server would refuse every line; with another API key it may answer them."""


class Open(Protocol):
    """An open door. Lives in one event loop."""

    async def post(self, url: str, body: bytes) -> Reply:
        """Raises Unreachable, KeyRefused."""


class Door(Protocol):
    """Where requests go; pickled to the actors that send them."""

    def open(self) -> Open: ...


@dataclass(frozen=True, slots=True)
class HttpDoor:
    """A server's, by its URL without /v1."""

    base_url: str
    api_key: str | None = field(default=None, repr=False)

    def open(self) -> Open:
        return _Http(self)


@dataclass(frozen=True, slots=True)
class HandleDoor:
    """An application's on the same Ray cluster; `key`: the name of the API key whose requests these
    are.
    """

    app_name: str
    key: str | None = None

    def open(self) -> Open:
        return _Handle(self)


class _Http:
    def __init__(self, door: HttpDoor) -> None:
        self._base_url = door.base_url
        headers = {"content-type": "application/json"}
        if door.api_key is not None:
            headers["authorization"] = f"Bearer {door.api_key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=SILENCE_SECONDS, sock_connect=CONNECT_SECONDS),
        )

    async def post(self, url: str, body: bytes) -> Reply:
        try:
            async with self._session.post(self._base_url + url, data=body) as response:
                reply = _reply(response.status, await response.read(), dict(response.headers))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(in_a_line(error)) from None
        if reply.status == UNAUTHORIZED:
            raise KeyRefused(f"the server does not take the API key: status {reply.status}: {reply.body[:200]!r}")
        return reply


class _Handle:
    def __init__(self, door: HandleDoor) -> None:
        self._door = door
        self._handle: Any = None

    async def post(self, url: str, body: bytes) -> Reply:
        try:
            if self._handle is None:
                self._handle = serve.get_app_handle(self._door.app_name)
            status, headers, answer = await self._handle.ask.remote(url, body, self._door.key)
        except (RayError, RayServeException) as error:
            raise Unreachable(in_a_line(error)) from None
        return _reply(status, answer, headers)


def _reply(status: int, body: bytes, headers: dict[str, str]) -> Reply:
    named = {name.lower(): value for name, value in headers.items()}
    retry_after = named.get(_RETRY_AFTER, "")
    return Reply(
        status,
        body,
        named.get(_REQUEST_ID, ""),
        float(retry_after) if retry_after.isdecimal() else None,
    )
