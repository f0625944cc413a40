"""Clients that send what nobody should, by raw sockets (T14)."""

import asyncio
import gzip
import statistics
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from cluster.chaos.client import ChaosClient
from cluster.chaos.report import Fault, Report
from cluster.chaos.requests import ChaosRequest, make_requests
from cluster.chaos.run import undisturbed
from tests.end_to_end.chaos.app import app_args, running
from tests.end_to_end.chaos.memory import WatchedMemory
from tests.end_to_end.chaos.options import Options

NUM_SLOW = 500
NUM_HEADERS = 100_000
BOMB_BYTES = 1 << 30  # once it is unpacked
BODY_BYTES = 1 << 30
PIECE = b" " * (1 << 20)
NUM_CANARIES = 10
CANARY_TOKENS = 8
MOST_TIMES = 2.0  # of a canary's seconds
MOST_MIB = 100
ANSWER_SECONDS = 30.0
HEAD = "POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"


@dataclass(slots=True)
class _Rude:
    """What is done to the server, and what it answered."""

    host: str
    port: int
    statuses: dict[str, str] = field(default_factory=dict)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port)

    def head(self) -> bytes:
        return HEAD.format(host=f"{self.host}:{self.port}").encode()


def be_rude(options: Options) -> Report:
    """T14: 500 connections that send a byte a second, a body of 1 GiB with its length and another
    in chunks, one that unpacks to 1 GiB, and 100,000 headers: memory grows by less than 100 MiB,
    and a short request takes less than twice as long.
    """
    with running(app_args({}, recovers=options.recovers), options.ingress) as app:
        return asyncio.run(_run(app.url, options))


async def _run(url: str, options: Options) -> Report:
    where = urlsplit(url)
    rude = _Rude(str(where.hostname), int(where.port or 80))
    num_slow = options.pick(options.streams, NUM_SLOW, 100)
    async with ChaosClient(url) as client:
        (request,) = make_requests(1, model=await client.first_model(), max_tokens=CANARY_TOKENS, seed=options.seed)
        expected = await undisturbed(client, [request], 1)
        before = await _canaries(client, request)
        async with WatchedMemory() as memory:
            slow = [asyncio.create_task(_trickle(rude)) for _ in range(num_slow)]
            beside_slow = await _canaries(client, request)
            floods = asyncio.create_task(_flood(rude))
            beside_floods = await _canaries(client, request)
            await floods
            for task in slow:
                task.cancel()
            await asyncio.gather(*slow, return_exceptions=True)
        streams = [await client.stream(request)]
    faults = [Fault(what, time.monotonic(), interrupts=False) for what in rude.statuses]
    report = Report("T14", len(FLOODS), faults, streams, expected)
    times = max(map(statistics.median, (beside_slow, beside_floods))) / statistics.median(before)
    report.figures |= {
        "answers": "; ".join(f"{what}: {status}" for what, status in rude.statuses.items()),
        "a canary, s": f"{statistics.median(before):.3f}; beside {num_slow} slow connections "
        f"{statistics.median(beside_slow):.3f}; beside floods too {statistics.median(beside_floods):.3f}",
        "memory, MiB": memory.summary,
    }
    if memory.grown > MOST_MIB:
        report.unmet.append(f"memory grew by {memory.grown} MiB, not {MOST_MIB}")
    if not options.quick and times > MOST_TIMES:
        report.unmet.append(f"a canary took {times:.1f} times as long, not {MOST_TIMES}")
    return report


async def _canaries(client: ChaosClient, request: ChaosRequest) -> list[float]:
    """Seconds, one after the other."""
    seconds = []
    for number in range(NUM_CANARIES):
        stream = await client.stream(replace(request, body=request.body | {"seed": number}))
        assert stream.transcript.is_complete, stream.error
        seconds.append((stream.ended or 0) - stream.sent)
    return seconds


async def _trickle(rude: _Rude) -> None:
    """A byte of a request's head a second, again and again where the server ends it."""
    while True:
        _, writer = await rude.connect()
        try:
            for byte in rude.head():
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(1.0)
        except ConnectionError:
            pass
        finally:
            writer.close()


async def _flood(rude: _Rude) -> None:
    for what, send in FLOODS.items():
        rude.statuses[what] = await _answer(rude, send)


async def _answer(rude: _Rude, send: Callable[[_Rude, asyncio.StreamWriter], Coroutine[None, None, None]]) -> str:
    """The status that a flood gets while it comes, or how it ends."""
    reader, writer = await rude.connect()
    sending = asyncio.create_task(send(rude, writer))
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            line = await reader.readline()
        return line.decode().partition(" ")[2].strip() or "closed"
    except ConnectionError:
        return "reset"
    except TimeoutError:
        return "none"
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()


async def _long_body(rude: _Rude, writer: asyncio.StreamWriter) -> None:
    writer.write(rude.head() + b"content-length: %d\r\n\r\n" % BODY_BYTES)
    for _ in range(BODY_BYTES // len(PIECE)):
        writer.write(PIECE)
        await writer.drain()


async def _chunks(rude: _Rude, writer: asyncio.StreamWriter) -> None:
    writer.write(rude.head() + b"transfer-encoding: chunked\r\n\r\n")
    for _ in range(BODY_BYTES // len(PIECE)):
        writer.write(b"%x\r\n%b\r\n" % (len(PIECE), PIECE))
        await writer.drain()


async def _bomb(rude: _Rude, writer: asyncio.StreamWriter) -> None:
    # a gzip file may be several, one after the other
    packed = await asyncio.to_thread(gzip.compress, PIECE)
    num_pieces = BOMB_BYTES // len(PIECE)
    head = rude.head() + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % (len(packed) * num_pieces)
    writer.write(head + packed * num_pieces)
    await writer.drain()


async def _headers(rude: _Rude, writer: asyncio.StreamWriter) -> None:
    writer.write(rude.head())
    for number in range(NUM_HEADERS):
        writer.write(b"x-%d: %b\r\n" % (number, b"y" * 100))
        await writer.drain()
    writer.write(b"\r\n")


FLOODS = {"1 GiB": _long_body, "1 GiB in chunks": _chunks, "gzip bomb": _bomb, "headers": _headers}
