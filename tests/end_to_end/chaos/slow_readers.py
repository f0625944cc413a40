"""Clients that hardly read (T17): memory for them is bounded, and others get tokens as before."""

import asyncio
import socket
import statistics
import time
from itertools import pairwise
from urllib.parse import urlsplit

import msgspec

from cluster.chaos.client import ChaosClient, Stream
from cluster.chaos.report import Report, percentile
from cluster.chaos.requests import ChaosRequest, make_requests
from cluster.chaos.run import undisturbed
from tests.end_to_end.chaos.app import app_args, running
from tests.end_to_end.chaos.drops import leftovers
from tests.end_to_end.chaos.memory import WatchedMemory
from tests.end_to_end.chaos.options import Options

NUM_OTHERS = 8
OTHERS_TOKENS = 256
NUM_ROUNDS = 3
SLOW_TOKENS = 1800  # with 20 logprobs each: about 4 MB an answer
MOST_TIMES = 1.2  # of the others' p99 gap, beside as many readers that are fast
MOST_MIB = 100
CLEAN_SECONDS = 60.0  # within which the server gives up all who do not read


def read_slowly(options: Options) -> Report:
    """T17: 50 clients that read a byte a second of long answers, beside 8 others: these' gaps
    between tokens are at p99 less than 1.2 times those beside 50 clients that read all; memory
    grows by less than 100 MiB; slow readers are given up within a minute.
    """
    num_slow = options.pick(options.streams, 50, 10)
    with running(app_args({}, recovers=options.recovers), options.ingress) as app:
        report = asyncio.run(_send(app.url, num_slow, options))
        if left := leftovers(app):
            report.unmet.append(f"is left: {left}")
    if not options.quick and float(report.figures["times"]) > MOST_TIMES:
        report.unmet.append(f"the others' gaps grew {report.figures['times']} times, not {MOST_TIMES}")
    return report


async def _send(url: str, num_slow: int, options: Options) -> Report:
    async with ChaosClient(url) as client:
        model = await client.first_model()
        others = make_requests(NUM_OTHERS, model=model, max_tokens=OTHERS_TOKENS, seed=options.seed)
        heavy = [_heavy(request) for request in make_requests(num_slow, model=model, max_tokens=SLOW_TOKENS, seed=1)]
        expected = await undisturbed(client, others, NUM_OTHERS)
        fast = [asyncio.create_task(client.stream(request)) for request in heavy]
        before = await _ask(client, others)
        await asyncio.gather(*fast)
        async with WatchedMemory() as memory:
            slow = [asyncio.create_task(_read_slowly(url, request)) for request in heavy]
            streams = await _ask(client, others)
            ended = time.monotonic()
            _, kept = await asyncio.wait(slow, timeout=CLEAN_SECONDS)
            seconds = time.monotonic() - ended
            for task in kept:
                task.cancel()
            results = await asyncio.gather(*slow, return_exceptions=True)
    report = Report("T17", 0, [], streams, expected)
    report.figures = {
        "gaps beside fast readers, s": _in_short(before),
        "gaps beside slow readers, s": _in_short(streams),
        "times": round(percentile(_gaps(streams), 0.99) / percentile(_gaps(before), 0.99), 2),
        "given up": f"{sum(isinstance(result, ConnectionError) for result in results)} of {num_slow} slow readers, "
        f"the last one {seconds:.0f} s after the others' end",
        "memory, MiB": memory.summary,
    }
    if kept:
        report.unmet.append(f"{len(kept)} slow readers are served {CLEAN_SECONDS:.0f} s later")
    if memory.grown > MOST_MIB:
        report.unmet.append(f"memory grew by {memory.grown} MiB, not {MOST_MIB}")
    return report


def _heavy(request: ChaosRequest) -> ChaosRequest:
    body = {name: request.body[name] for name in ("model", "max_tokens", "ignore_eos", "temperature", "seed", "stream")}
    return ChaosRequest(request.index, "heavy", "/v1/completions", body | {"prompt": "once upon", "logprobs": 20})


async def _ask(client: ChaosClient, requests: list[ChaosRequest]) -> list[Stream]:
    streams: list[Stream] = []
    for _ in range(NUM_ROUNDS):
        streams += await asyncio.gather(*(client.stream(request) for request in requests))
    return streams


async def _read_slowly(url: str, request: ChaosRequest) -> None:
    """A byte a second; raises ConnectionError once the server has given the connection up."""
    where = urlsplit(url)
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await loop.sock_connect(connection, (where.hostname, where.port))
        body = msgspec.json.encode(request.body)
        head = f"POST {request.path} HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-type: application/json\r\n"
        await loop.sock_sendall(connection, f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        while await loop.sock_recv(connection, 1):
            await asyncio.sleep(1.0)
            if error := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(error, "given up")  # what had come could be read for hours


def _gaps(streams: list[Stream]) -> list[float]:
    return sorted(later - earlier for stream in streams for earlier, later in pairwise(stream.arrivals))


def _in_short(streams: list[Stream]) -> str:
    gaps = _gaps(streams)
    return f"p50 {statistics.median(gaps):.4f}, p99 {percentile(gaps, 0.99):.4f}, max {gaps[-1]:.3f}"
