"""Clients that hardly read (T17): memory for them is bounded, and others get tokens as before."""

import asyncio
import socket
import statistics
import time
from itertools import pairwise
from pathlib import Path
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
CLEAN_SECONDS = 90.0  # within which the server gives up all who do not read
POLL_SECONDS = 0.5
ESTABLISHED = "01"  # the state, in /proc/net/tcp


def read_slowly(options: Options) -> Report:
    """T17: 50 clients that read a byte a second of long answers, beside 8 others: these' gaps
    between tokens are at p99 less than 1.2 times those beside 50 clients that read all; memory
    grows by less than 100 MiB; the server ends the slow readers' connections within 90 s.
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
        plain = make_requests(num_slow, model=model, max_tokens=SLOW_TOKENS, seed=1, kinds=("seeded",))
        heavy = [_heavy(request) for request in plain]
        expected = await undisturbed(client, others, NUM_OTHERS)
        fast = [asyncio.create_task(client.stream(request)) for request in heavy]
        before = await _ask(client, others)
        await asyncio.gather(*fast)
        async with WatchedMemory() as memory:
            readers = [socket.socket() for _ in heavy]
            slow = [asyncio.create_task(_read_slowly(url, *each)) for each in zip(readers, heavy, strict=True)]
            streams = await _ask(client, others)
            ended = time.monotonic()
            kept = await _given_up(readers)
            seconds = time.monotonic() - ended
            for task in slow:
                task.cancel()
            await asyncio.gather(*slow, return_exceptions=True)
    report = Report("T17", 0, [], streams, expected)
    report.figures = {
        "gaps beside fast readers, s": _in_short(before),
        "gaps beside slow readers, s": _in_short(streams),
        "times": round(percentile(_gaps(streams), 0.99) / percentile(_gaps(before), 0.99), 2),
        "given up": f"{num_slow - len(kept)} of {num_slow} slow readers, {seconds:.0f} s after the others' end",
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


async def _read_slowly(url: str, connection: socket.socket, request: ChaosRequest) -> None:
    """A byte a second, until it is cancelled or all has been read."""
    where = urlsplit(url)
    loop = asyncio.get_running_loop()
    with connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await loop.sock_connect(connection, (where.hostname, where.port))
        body = msgspec.json.encode(request.body)
        head = f"POST {request.path} HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-type: application/json\r\n"
        await loop.sock_sendall(connection, f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        while await loop.sock_recv(connection, 1):
            await asyncio.sleep(1.0)


async def _given_up(readers: list[socket.socket]) -> set[tuple[int, int]]:
    """Wait until the server has none of these connections, whose clients need not learn of it while
    they have something to read; the ports of those that it still has after CLEAN_SECONDS.
    """
    is_open = [reader for reader in readers if reader.fileno() != -1]
    theirs = {(reader.getpeername()[1], reader.getsockname()[1]) for reader in is_open}
    deadline = time.monotonic() + CLEAN_SECONDS
    while (kept := theirs & _established()) and time.monotonic() < deadline:
        await asyncio.sleep(POLL_SECONDS)
    return kept


def _established() -> set[tuple[int, int]]:
    """Both ports of all connections, the nearer end's first."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ends = [(local, remote) for _, local, remote, state, *_ in lines if state == ESTABLISHED]
    return {(int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16)) for local, remote in ends}


def _gaps(streams: list[Stream]) -> list[float]:
    return sorted(later - earlier for stream in streams for earlier, later in pairwise(stream.arrivals))


def _in_short(streams: list[Stream]) -> str:
    gaps = _gaps(streams)
    return f"p50 {statistics.median(gaps):.4f}, p99 {percentile(gaps, 0.99):.4f}, max {gaps[-1]:.3f}"
