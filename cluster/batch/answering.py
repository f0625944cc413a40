"""Answers chunks of lines, in the actors of Ray Data."""

import asyncio
import random
import time
from typing import Any

import numpy as np

from cluster.batch.doors import Door, KeyRefused, Open, Unreachable
from cluster.batch.files.index import lines_of
from cluster.batch.files.lines import MAX_LINE_BYTES, Asked, BadLine, Reply, answer_line, failure_line, read_line
from cluster.batch.files.place import Place
from engine.errors import SquadronError

LATER = (408, 429, 502, 503)  # statuses that say: send it again later; 502: a proxy has lost its server
MIN_PAUSE, MAX_PAUSE = 0.5, 30.0  # seconds
ANSWERS = "answers"  # the column with a chunk's answers, one line for each


class ServerLost(SquadronError):
    """No line was answered for long, or none will be with this API key; the batch may be started
    again, and goes on.
    """


class Answerer:
    """Answers all lines of a chunk at once, and of all its chunks together as many as it is told.

    What the server refuses for now (429, 503), and what did not reach it (502), is sent again.
    Raises ServerLost if no line at all was answered for `patience` seconds, and if the server does
    not take the API key.
    """

    def __init__(self, source: Place, door: Door, concurrency: int, patience: float, url: str | None) -> None:
        """`concurrency`: most lines that are being answered; `url`: see `Run`."""
        self._source = source
        self._door = door
        self._open: Open | None = None
        self._room = asyncio.Semaphore(concurrency)
        self._patience = patience
        self._url = url
        self._last_answer = time.monotonic()

    async def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Chunks, a row each, to what was answered."""
        answered = [
            await self._chunk(int(offset), int(length))
            for offset, length in zip(rows["offset"], rows["length"], strict=True)
        ]
        return {"first": rows["first"], ANSWERS: np.array([*answered, None], dtype=object)[:-1]}

    async def _chunk(self, offset: int, length: int) -> bytes:
        if length > MAX_LINE_BYTES:
            problem = BadLine(f"the line has more than {MAX_LINE_BYTES} bytes", code="line_too_large")
            return failure_line(problem) + b"\n"
        data = await asyncio.to_thread(self._source.part, offset, length)
        answers = await asyncio.gather(*map(self._line, lines_of(data)))
        return b"".join(answer + b"\n" for answer in answers)

    async def _line(self, line: bytes) -> bytes:
        try:
            asked = read_line(line)
            if self._url not in (None, asked.url):
                raise BadLine(f"url={asked.url[:64]!r} is not the batch's endpoint", asked.custom_id, "invalid_url")
        except BadLine as error:
            return failure_line(error)
        async with self._room:
            return answer_line(asked, await self._post(asked))

    async def _post(self, asked: Asked) -> Reply:
        start = time.monotonic()
        if self._open is None:
            self._open = self._door.open()
        while True:
            reply, reason = None, ""
            try:
                reply = await self._open.post(asked.url, bytes(asked.body))
            except Unreachable as error:
                reason = str(error)
            except KeyRefused as error:
                raise ServerLost(str(error)) from None
            if reply is not None and reply.status not in LATER:
                self._last_answer = time.monotonic()
                return reply
            if time.monotonic() - max(start, self._last_answer) > self._patience:
                told = reason if reply is None else f"status {reply.status}: {reply.body[:200]!r}"
                raise ServerLost(f"nothing was answered for {self._patience:g} s; last: {told}")
            wished = MIN_PAUSE if reply is None else reply.retry_after or MIN_PAUSE
            await asyncio.sleep(min(wished, MAX_PAUSE) * random.uniform(0.5, 1.0))
