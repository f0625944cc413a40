"""A gateway's HTTP server, as Serve's direct ingress runs it; or, for comparison, the least that
could write such a stream: the same bytes from a bare protocol, a write a stream and step.

    python -m tests.benchmarks.gateway.server --engine PORT [--profile]
    python -m tests.benchmarks.gateway.server --bare EVENT_BYTES --streams N --tokens N

Prints its port; with --bare, also the one where clients ask for a step.
"""

import argparse
import asyncio
import cProfile
import json
import pstats
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import uvicorn
import uvloop

from cluster.api.app import build
from cluster.api.edge.connection import Connection
from cluster.api.models.model import Model, Models
from cluster.gateway.gateway import Gateway
from cluster.replica.delta_channel.messages import GatewayAddress
from cluster.sockets import LOOPBACK, frame
from engine.frontend.garbage import COLLECTOR
from engine.request import Request
from tests.benchmarks.gateway.engine import TEXT, Order

END = b"0\r\n\r\n"  # of an answer
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
BACKLOG = 16384


class OpenCall:
    """Is never answered: the deltas are all that counts."""

    async def result(self) -> str:
        await asyncio.Event().wait()
        return ""

    def cancel(self) -> None:
        pass


class ScriptedEngines:
    """The engine in the other process."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def generate(self, request: Request, gateway: GatewayAddress) -> OpenCall:
        self._writer.write(frame(msgspec.msgpack.encode(Order(gateway, request.id))))
        return OpenCall()

    async def introduce(self, gateway: GatewayAddress, connected: set[str]) -> bool:
        return True


@asynccontextmanager
async def gateway_server(engine_port: int) -> AsyncIterator[int]:
    """Its port."""
    _, writer = await asyncio.open_connection(LOOPBACK, engine_port)
    gateway = Gateway(ScriptedEngines(writer), max_attempts=1, patience=1000.0)  # type: ignore[arg-type]
    await gateway.start(LOOPBACK)
    app = build(gateway, Models.one(gateway, Model(name="demo", max_model_len=8192, vocab_size=1000)))
    listening = socket.create_server((LOOPBACK, 0), backlog=BACKLOG)
    config = uvicorn.Config(app, http=Connection, lifespan="off", access_log=False, log_level="critical")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listening]))
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await serving
        await gateway.close()
        writer.close()


async def serve_gateway(engine_port: int) -> None:
    Connection.max_waiting = BACKLOG
    async with gateway_server(engine_port) as port:
        COLLECTOR.slow_down()
        print(json.dumps([port]), flush=True)
        await asyncio.to_thread(sys.stdin.read)  # until the benchmark closes it


class Bare(asyncio.Protocol):
    """Answers each request with the head of a stream."""

    streams: list[asyncio.Transport] = []  # noqa: RUF012

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(HEAD)
        self.streams.append(self._transport)


async def serve_bare(event_bytes: int, num_streams: int, num_tokens: int) -> None:
    data = f'{{"content":"{TEXT}"}}'.encode()
    event = b"data: " + data.ljust(event_bytes - 15) + b"\n\n"
    chunk = b"%x\r\n%s\r\n" % (len(event), event)

    async def step_on_demand(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for left in reversed(range(num_tokens)):
            if not await reader.read(1):
                return
            while len(Bare.streams) < num_streams:
                await asyncio.sleep(0.01)
            for stream in Bare.streams:
                stream.write(chunk if left else chunk + END)

    loop = asyncio.get_running_loop()
    http = await loop.create_server(Bare, LOOPBACK, 0, backlog=BACKLOG)
    steps = await asyncio.start_server(step_on_demand, LOOPBACK, 0)
    print(json.dumps([server.sockets[0].getsockname()[1] for server in (http, steps)]), flush=True)
    await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", type=int)
    parser.add_argument("--bare", type=int)
    parser.add_argument("--streams", type=int)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    if arguments.bare:
        work = serve_bare(arguments.bare, arguments.streams, arguments.tokens)
    else:
        work = serve_gateway(arguments.engine)
    profile = cProfile.Profile()
    if arguments.profile:
        profile.enable()
    uvloop.run(work)
    if arguments.profile:
        profile.disable()
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
