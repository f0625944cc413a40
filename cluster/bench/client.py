"""A client of OpenAI's streaming completions that records when each event arrived."""

import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from cluster.bench.workload import Work
from engine.errors import InvalidConfig, in_a_line

SILENCE_SECONDS = 300.0  # without data, after which a request fails
CONNECT_SECONDS = 30.0
WHOLE = ("length", "stop")  # reasons for which a whole answer ends
SHOWN_BODY = 200  # characters shown of an answer that is not an OpenAI error


@dataclass(slots=True)
class Exchange:
    """A request and its answer; times in seconds of time.perf_counter(). `error` is None if the
    answer is complete.
    """

    due: float  # when it arrived
    sent: float
    pieces: list[float] = field(default_factory=list)  # when each event with a choice came
    num_input: int = 0
    num_output: int = 0
    finish_reason: str | None = None
    error: str | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Event(msgspec.Struct):
    choices: list[_Choice] = msgspec.field(default_factory=list)
    usage: _Usage | None = None
    error: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode


class Client:
    """Sends requests to one server; a key goes into the authorization header."""

    def __init__(self, base_url: str, *, api_key: str | None, temperature: float) -> None:
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._url = base_url.rstrip("/").removesuffix("/v1") + "/v1"
        self._temperature = temperature

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._session.close()

    async def first_model(self) -> str:
        """The name of the first model that the server lists; raises InvalidConfig if there is no
        such server.
        """
        url = f"{self._url}/models"
        try:
            async with self._session.get(url) as response:
                body = await response.read()
                if response.status != 200:
                    raise InvalidConfig(f"{url} answers {_refusal(response.status, body)}")
                return str(msgspec.json.decode(body)["data"][0]["id"])
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, IndexError, TypeError) as error:
            raise InvalidConfig(f"{url} lists no models: {in_a_line(error)}") from None

    async def complete(self, model: str, work: Work, due: float) -> Exchange:
        """Send a request and read its answer; any failure is in the exchange's `error`."""
        body = msgspec.json.encode(
            {
                "model": model,
                "prompt": work.prompt,
                "max_tokens": work.output_len,
                "temperature": self._temperature,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        headers = {"content-type": "application/json"}
        exchange = Exchange(due, sent=time.perf_counter())
        try:
            async with self._session.post(f"{self._url}/completions", data=body, headers=headers) as response:
                if response.status == 200:
                    await _read(response.content, exchange)
                else:
                    exchange.error = _refusal(response.status, await response.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            exchange.error = exchange.error or in_a_line(error)  # after an error event the connection may end
        return exchange


async def _read(stream: aiohttp.StreamReader, exchange: Exchange) -> None:
    rest = b""
    async for data in stream.iter_any():
        now = time.perf_counter()
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                _take(line[5:].strip(), exchange, now)
    if exchange.error is None and (exchange.finish_reason is None or not exchange.num_output):
        exchange.error = "the stream ended without finish_reason and usage"
    elif exchange.error is None and exchange.finish_reason not in WHOLE:
        exchange.error = f"the answer ended with finish_reason {exchange.finish_reason!r}"


def _take(data: bytes, exchange: Exchange, now: float) -> None:
    if data == b"[DONE]":
        return
    event = _decode_event(data)
    if event.error is not None:
        exchange.error = f"in the stream: {_message(event.error)}"
    if event.choices:
        exchange.pieces.append(now)
        exchange.finish_reason = event.choices[0].finish_reason
    if event.usage is not None:
        exchange.num_input, exchange.num_output = event.usage.prompt_tokens, event.usage.completion_tokens


def _refusal(status: int, body: bytes) -> str:
    try:
        message = _message(msgspec.json.decode(body)["error"])
    except (ValueError, KeyError, TypeError):
        message = body.decode(errors="replace")[:SHOWN_BODY].strip()
    return f"HTTP {status}: {message}"


def _message(error: Any) -> str:
    return str(error["message"] if isinstance(error, dict) and "message" in error else error)
