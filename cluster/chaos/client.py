"""A client that never retries, and records everything that it received and when."""

import asyncio
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from cluster.chaos.requests import ChaosRequest
from cluster.chaos.transcript import Transcript
from engine.errors import InvalidConfig, in_a_line

CONNECT_SECONDS = 30.0
FAILED_PAUSE_SECONDS = 0.5  # so as not to flood a server that is down
RESUME_SECONDS = 60.0  # for a server to resume a stream
SHOWN_BODY = 300  # characters kept of an error answer


@dataclass(slots=True)
class Stream:
    """A request and its answer; times are of time.monotonic()."""

    request: ChaosRequest
    sent: float
    transcript: Transcript = field(default_factory=Transcript)
    arrivals: list[float] = field(default_factory=list)  # times of events with a part of the answer
    ended: float | None = None
    status: int | None = None  # of the answer
    retry_after: str | None = None
    error: str | None = None  # a connection's exception, an error answer, or an error event
    last_event_id: str | None = None  # if events have ids
    num_resumed: int = 0
    previous_id: str | None = None  # of the response that this one goes on from

    @property
    def is_silently_cut(self) -> bool:
        """It ended without an error although the answer is incomplete."""
        return self.ended is not None and self.error is None and not self.transcript.is_complete


class ChaosClient:
    """Sends requests to one server; a key goes into the authorization header."""

    def __init__(
        self, url: str, *, api_key: str | None = None, silence_seconds: float = 120.0, resumes: bool = False
    ) -> None:
        """`silence_seconds`: a stream silent for longer counts as lost. `resumes`: broken streams
        whose events have ids are resumed.
        """
        self._url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._silence_seconds = silence_seconds
        self._resumes = resumes

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # One connection per stream, as separate clients would have: none that a fault has cut
            # is reused.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=self._silence_seconds),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(self, path: str) -> Any:
        """A JSON answer; raises InvalidConfig."""
        try:
            async with self._session.get(self._url + path) as response:
                if response.status != 200:
                    raise InvalidConfig(f"{self._url}{path} answers {response.status}: {(await response.text())[:300]}")
                return await response.json()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise InvalidConfig(f"{self._url}{path} does not answer: {in_a_line(error)}") from None

    async def models(self) -> list[str]:
        """The names of the models that the server lists, without adapters; raises InvalidConfig."""
        listed = await self.get("/v1/models")
        try:
            names = [str(card["id"]) for card in listed["data"] if card.get("parent") is None]
            return [names[0], *names[1:]]
        except (KeyError, IndexError, TypeError, AttributeError):
            raise InvalidConfig(f"{self._url}/v1/models lists no models") from None

    async def first_model(self) -> str:
        """See `models`."""
        return (await self.models())[0]

    async def first_adapter(self) -> str:
        """The name of the first adapter that the server lists; empty if there is none."""
        listed = await self.get("/v1/models")
        return next((str(card["id"]) for card in listed["data"] if card.get("parent") is not None), "")

    async def stream(self, request: ChaosRequest, *, drop_after: int | None = None) -> Stream:
        """Send the request once and read to the end; or break the connection off after so many
        bytes.
        """
        stream = Stream(request, sent=time.monotonic())
        if request.first is not None:
            stream.previous_id = await self._ask_first(stream, request.first)
            if stream.previous_id is None:
                stream.ended = time.monotonic()
                return stream
        await self._ask(stream, drop_after)
        broken = time.monotonic()
        while self._resumes and stream.error and stream.last_event_id and time.monotonic() < broken + RESUME_SECONDS:
            await asyncio.sleep(FAILED_PAUSE_SECONDS)
            stream.error = None
            await self._ask(stream, drop_after)
            stream.num_resumed += stream.error is None
        stream.ended = time.monotonic()
        return stream

    async def _ask_first(self, stream: Stream, body: dict[str, Any]) -> str | None:
        """The id of the answer; None, and the stream has the error, if there is none."""
        try:
            async with self._session.post(self._url + stream.request.path, json=body) as response:
                stream.status = response.status
                if response.status == 200:
                    return str((await response.json())["id"])
                stream.error = f"{response.status}: {(await response.text())[:SHOWN_BODY]}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            stream.error = in_a_line(error)
        return None

    async def _ask(self, stream: Stream, drop_after: int | None) -> None:
        """Read what the stream does not have yet: everything, or what follows the last event."""
        body = stream.request.body
        if stream.previous_id is not None:
            body = body | {"previous_response_id": stream.previous_id}
        headers = {} if stream.last_event_id is None else {"Last-Event-ID": stream.last_event_id}
        try:
            async with self._session.post(self._url + stream.request.path, json=body, headers=headers) as response:
                stream.status = response.status
                stream.retry_after = response.headers.get("retry-after")
                if response.status != 200:
                    stream.error = f"{response.status}: {(await response.text())[:SHOWN_BODY]}"
                elif response.content_type == "application/json":
                    _take(await response.json(), stream, time.monotonic())
                else:
                    await _read(response, stream, drop_after)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            stream.error = stream.error or in_a_line(error)
        except (ValueError, KeyError, TypeError) as error:
            stream.error = stream.error or f"an event that makes no sense: {in_a_line(error)}"

    async def send_all(
        self,
        requests: list[ChaosRequest],
        *,
        concurrency: int,
        streams: list[Stream],
        stop: asyncio.Event | None = None,
    ) -> None:
        """Send each request once, `concurrency` at a time, into `streams`; with `stop`, repeat them
        in turn until it is set.
        """
        num_sent = 0

        async def work() -> None:
            nonlocal num_sent
            while num_sent < len(requests) or (stop is not None and not stop.is_set()):
                request = requests[num_sent % len(requests)]
                num_sent += 1
                stream = await self.stream(request)
                streams.append(stream)
                if stream.error is not None:
                    await asyncio.sleep(FAILED_PAUSE_SECONDS)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(concurrency, len(requests))):
                tasks.create_task(work())


async def _read(response: aiohttp.ClientResponse, stream: Stream, drop_after: int | None) -> None:
    rest = b""
    event_id = None
    num_bytes = 0
    async for data in response.content.iter_any():
        now = time.monotonic()
        num_bytes += len(data)
        if drop_after is not None and num_bytes >= drop_after:
            response.close()
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"id:"):
                event_id = line[3:].strip().decode()
            elif line.startswith(b"data:"):
                if line[5:].strip() != b"[DONE]":
                    _take(msgspec.json.decode(line[5:]), stream, now)
                stream.last_event_id = event_id


def _take(event: dict[str, Any], stream: Stream, now: float) -> None:
    error = event.get("error") or (event.get("response") or {}).get("error")
    if error is not None:
        stream.error = f"in the stream: {str(error.get('message'))[:SHOWN_BODY]}"
    elif stream.transcript.take(event):
        stream.arrivals.append(now)
