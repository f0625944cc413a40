"""A client that costs little: raw sockets, and events counted, not parsed.

    python -m tests.benchmarks.http.client --port PORT --streams N < BODIES

Each line of the standard input is a request's JSON body; N streams are open at any time. Prints a
JSON object: seconds from the first request to the last answer, processor seconds, events with text,
seconds to the first event of each request but a stream's first, seconds between a request's
arrivals of events, and what ended a stream early.
"""

import argparse
import asyncio
import importlib
import importlib.util
import json
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import cast

from cluster.sockets import LOOPBACK

# uvloop, where there is one, takes less than half of asyncio's processor time.
LOOP = importlib.import_module("uvloop" if importlib.util.find_spec("uvloop") else "asyncio")
PATH = "/v1/completions"
EVENT = b"data: {"
END = b"data: [DONE]\n\n"
KEPT = max(len(EVENT), len(END), len(b"0\r\n\r\n")) + 8  # bytes that may begin what the next ones complete


@dataclass(slots=True)
class Outcome:
    num_events: int = 0
    first_event_seconds: list[float] = field(default_factory=list)
    gap_seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Stream(asyncio.Protocol):
    """Sends one request after the other over a connection that is kept, until none is left."""

    def __init__(self, bodies: deque[bytes], outcome: Outcome) -> None:
        self._bodies = bodies
        self._outcome = outcome
        self._num_sent = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def data_received(self, data: bytes) -> None:
        if EVENT in data:
            self._take_time(time.perf_counter())
        # An event may be cut anywhere: what the last bytes began is looked at again with the next.
        looked_at = self._rest + data
        self._outcome.num_events += looked_at.count(EVENT) - self._rest.count(EVENT)
        self._rest = looked_at[-KEPT:]
        if END in self._rest and self._rest.endswith(b"0\r\n\r\n"):
            self._next()

    def _take_time(self, now: float) -> None:
        if self._last_event is not None:
            self._outcome.gap_seconds.append(round(now - self._last_event, 6))
        elif self._num_sent > 1:
            self._outcome.first_event_seconds.append(now - self._sent)
        self._last_event = now

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            told = self._rest.decode(errors="replace")
            self._outcome.failures.append(f"the connection ended: {error or told}")
            self.ended.set_result(None)

    def _next(self) -> None:
        if not self._bodies:
            self.ended.set_result(None)
            self._transport.close()
            return
        body = self._bodies.popleft()
        head = f"POST {PATH} HTTP/1.1\r\nhost: {LOOPBACK}\r\ncontent-type: application/json\r\n"
        self._rest, self._sent = b"", time.perf_counter()
        self._last_event: float | None = None
        self._num_sent += 1
        self._transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)


async def run(port: int, num_streams: int, bodies: deque[bytes]) -> dict[str, object]:
    outcome, loop = Outcome(), asyncio.get_running_loop()
    started = time.perf_counter()
    streams = []
    for _ in range(num_streams):
        _, stream = await loop.create_connection(lambda: Stream(bodies, outcome), LOOPBACK, port)
        streams.append(stream.ended)
    await asyncio.gather(*streams)
    return {
        "seconds": time.perf_counter() - started,
        "events": outcome.num_events,
        "first_event_seconds": outcome.first_event_seconds,
        "gap_seconds": outcome.gap_seconds,
        "failures": outcome.failures,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--streams", type=int, required=True)
    arguments = parser.parse_args()
    bodies = deque(line.strip() for line in sys.stdin.buffer)
    before = time.process_time()
    result = LOOP.run(run(arguments.port, arguments.streams, bodies))
    result["cpu_seconds"] = time.process_time() - before
    # Buffered, as sys.stdout is not under PYTHONUNBUFFERED: there a short write loses the rest.
    with open(1, "w", encoding="utf-8", closefd=False) as out:
        json.dump(result, out)


if __name__ == "__main__":
    main()
