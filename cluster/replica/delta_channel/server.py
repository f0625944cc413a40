"""The gateway's end of the delta channel."""

import asyncio
import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from cluster.replica.delta_channel.calls import OpenCalls
from cluster.replica.delta_channel.messages import (
    HELLO_SECONDS,
    NAME_BYTES,
    OF_A_WITNESS,
    WELCOME,
    Delta,
    EngineReport,
    GatewayAddress,
    News,
    read_frame,
)
from cluster.sockets import MAX_FRAME_BYTES, TOKEN_BYTES, set_tcp_options

# Silence is counted in turns of the gateway's own loop, so that a gateway that was itself stopped
# blames no replica. A pause of two seconds, as on overloaded machines, does not count yet.
TURN_SECONDS = 0.1
SILENT_TURNS = 27
# The same for a replica whose witness says that its process exists: it is busy and cannot report,
# but not forever.
BUSY_TURNS = 300
NUM_LAST_WORDS = 64


class DeltaServer:
    """The gateway's end. The callbacks are called in the event loop, with the connection's name.

    `on_silent` is called, with the replica's last report and the seconds, just before the
    connection is aborted because of silence.
    """

    def __init__(
        self,
        on_deltas: Callable[[list[Delta], str], None],
        on_lost: Callable[[str], None],
        on_silent: Callable[[EngineReport, float], None],
        on_told: Callable[[EngineReport, bytes, bytes], None] = lambda report, beginnings, lost: None,
    ) -> None:
        """`on_told` is given each report with the beginnings of prompts that other gateways have
        sent the replica, and those that its cache has lost.
        """
        self._on_deltas = on_deltas
        self._on_lost = on_lost
        self._on_silent = on_silent
        self._on_told = on_told
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._decoder = msgspec.msgpack.Decoder(News)
        self._connections: dict[str, _Incoming] = {}
        self.last_words: deque[EngineReport] = deque(maxlen=NUM_LAST_WORDS)  # of replicas that are gone
        # Connections of replicas, witnesses, and anyone else.
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def start(self, host: str) -> GatewayAddress:
        """Listen on a free port of `host`, which must be reachable by the engines only."""
        self._server = await asyncio.start_server(self._accept, host, 0)
        self._listening = asyncio.create_task(self._listen_for_silence())
        port: int = self._server.sockets[0].getsockname()[1]
        return GatewayAddress(host, port, self._token)

    async def close(self) -> None:
        self._listening.cancel()
        self._server.close()
        for writer in self._serving.values():
            writer.close()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    def is_connected(self, connection: str) -> bool:
        return connection in self._connections

    def report_of(self, connection: str) -> EngineReport | None:
        """The last one; None if the replica is not connected, or has not reported yet."""
        incoming = self._connections.get(connection)
        return None if incoming is None else incoming.report

    def reports(self) -> list[EngineReport]:
        """The last report of each replica that is connected."""
        return [incoming.report for incoming in self._connections.values() if incoming.report is not None]

    def calls(self) -> list[tuple[EngineReport, OpenCalls]]:
        """For each replica that is connected and has reported."""
        connected = [incoming for incoming in self._connections.values() if not incoming.writer.is_closing()]
        return [(incoming.report, incoming.calls) for incoming in connected if incoming.report]

    def in_trouble(self, seconds: float) -> list[tuple[str, str]]:
        """Connections whose replica has reported a problem for that long, and the problem."""
        since = time.monotonic() - seconds
        return [
            (connection, incoming.report.problem)
            for connection, incoming in self._connections.items()
            if incoming.report is not None and incoming.report.problem is not None and incoming.well < since
        ]

    async def _listen_for_silence(self) -> None:
        while True:
            await asyncio.sleep(TURN_SECONDS)
            for incoming in self._connections.values():
                incoming.num_silent_turns += 1
                incoming.num_unwitnessed_turns += 1
                is_dead = incoming.num_unwitnessed_turns >= SILENT_TURNS or incoming.num_silent_turns >= BUSY_TURNS
                if is_dead and incoming.report is not None and not incoming.writer.is_closing():
                    self._on_silent(incoming.report, incoming.num_silent_turns * TURN_SECONDS)
                    incoming.writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Not a coroutine: one that never began, because the loop ended, would close nothing."""
        if not self._server.is_serving():
            writer.close()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving[task] = writer
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._serving.pop(task).close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = await self._greet(reader)
        if name is None:
            return
        connection, is_witness = name[:NAME_BYTES].hex(), name[NAME_BYTES:] == OF_A_WITNESS
        # A busy replica reads nothing either: how long it may is counted here (BUSY_TURNS).
        set_tcp_options(writer.get_extra_info("socket"), ends_unread=is_witness)
        if is_witness:
            await self._hear_witness(connection, reader)
        else:
            writer.write(WELCOME)
            await self._receive(connection, reader, writer)

    async def _greet(self, reader: asyncio.StreamReader) -> bytes | None:
        """The connection's name, if the token arrives in time; for a witness, its replica's name
        and OF_A_WITNESS.
        """
        with suppress(OSError, asyncio.IncompleteReadError, msgspec.DecodeError):
            async with asyncio.timeout(HELLO_SECONDS):
                hello = await read_frame(reader, limit=TOKEN_BYTES + NAME_BYTES + len(OF_A_WITNESS))
            if hmac.compare_digest(hello[:TOKEN_BYTES], self._token):
                return hello[TOKEN_BYTES:]
        return None

    async def _hear_witness(self, connection: str, reader: asyncio.StreamReader) -> None:
        """Until it, or the connection that it vouches for, ends."""
        with suppress(asyncio.IncompleteReadError, OSError, msgspec.DecodeError):
            while connection in self._connections:
                self._connections[connection].num_unwitnessed_turns = 0
                await read_frame(reader, limit=0)

    async def _receive(self, connection: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        incoming = self._connections[connection] = _Incoming(writer, OpenCalls(connection, writer))
        try:
            with suppress(asyncio.IncompleteReadError, OSError, msgspec.DecodeError):
                while True:
                    news = self._decoder.decode(await read_frame(reader, MAX_FRAME_BYTES))
                    incoming.num_silent_turns = incoming.num_unwitnessed_turns = 0
                    if news.report is not None:
                        incoming.report = news.report
                        incoming.calls.reported(news.num_gateways)
                        self._on_told(news.report, news.beginnings, news.lost)
                    if incoming.report is None or incoming.report.problem is None:
                        incoming.well = time.monotonic()
                    if news.deltas:
                        self._on_deltas(news.deltas, connection)
                    for answer in news.answers:
                        incoming.calls.answer(answer.number, answer.refusal)
        finally:
            del self._connections[connection]
            if incoming.report is not None:
                self.last_words.append(incoming.report)
            self._on_lost(connection)
            incoming.calls.lose()


@dataclass(slots=True)
class _Incoming:
    writer: asyncio.StreamWriter
    calls: OpenCalls
    num_silent_turns: int = 0
    num_unwitnessed_turns: int = 0  # in which neither the replica nor its witness sent anything
    report: EngineReport | None = None
    well: float = field(default_factory=time.monotonic)  # when it last was
