"""How much a gateway does for a token: calls of functions. Of their time, see
`python -m tests.benchmarks.bench_gateway`.
"""

import asyncio
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvloop

from cluster.sockets import LOOPBACK
from tests.benchmarks.bench_gateway import started
from tests.benchmarks.gateway.client import Clients
from tests.benchmarks.gateway.server import gateway_server
from tests.calls import Calls

NUM_TOKENS = 24


@contextmanager
def gateway(engine_port: int) -> Iterator[tuple[int, asyncio.AbstractEventLoop]]:
    """In a thread of its own: its port, and its loop."""
    has_started = threading.Event()
    made: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        try:
            async with gateway_server(engine_port) as port:
                made.append((port, asyncio.get_running_loop(), end := asyncio.Event()))
                has_started.set()
                await end.wait()
        finally:
            has_started.set()

    thread = threading.Thread(target=uvloop.run, args=(serve(),))
    thread.start()
    has_started.wait()
    port, loop, end = made[0]
    try:
        yield port, loop
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()


def calls_of_a_token(path: str, num_streams: int) -> float:
    """From the message with a step's tokens to their events, all streams' but their first ones and
    last ones.
    """
    size = ("--streams", num_streams, "--tokens", NUM_TOKENS)
    with started("engine", *size) as (_, (orders, steps)), gateway(orders) as (port, loop):
        clients = Clients(port, num_streams, NUM_TOKENS, path)
        with socket.create_connection((LOOPBACK, steps)) as on_demand:

            def step(number: int) -> None:
                on_demand.sendall(b".")
                clients.read(num_streams * (number + 1))

            def profile(calls: Calls | None) -> None:
                has_begun = threading.Event()
                loop.call_soon_threadsafe(sys.setprofile, calls)
                loop.call_soon_threadsafe(has_begun.set)
                has_begun.wait()

            calls = Calls()
            step(0)
            step(1)
            profile(calls)
            for number in range(2, NUM_TOKENS - 1):
                step(number)
            profile(None)
            step(NUM_TOKENS - 1)
            clients.close()
    return calls.count / (num_streams * (NUM_TOKENS - 3))


@pytest.mark.parametrize(
    ("path", "most"),
    [("/v1/chat/completions", 20), ("/v1/completions", 20), ("/v1/messages", 20), ("/v1/responses", 25)],
)
def test_a_token_takes_few_calls_however_many_streams_there_are(path: str, most: int) -> None:
    """14 with 64 streams; 106 and 119 if each event woke its stream's task."""
    few, many = calls_of_a_token(path, 4), calls_of_a_token(path, 64)
    assert many < most
    assert many <= few
