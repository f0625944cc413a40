"""The delta channel: engine replicas connect to a gateway and send it, once a step, the deltas of
all its requests.

A frame is its length (4 bytes, big-endian) and as many bytes. The first frame of a connection is
the gateway's token and the name that the engine gives the connection; the gateway answers with one
byte, and never again. Every other frame is a msgpack `News`: deltas, or the replica's report on
itself, which comes even when nothing else does. Whoever goes away is noticed by the end of the
connection, whoever is frozen by its silence, and that of the witness beside it (`replica/witness`),
which has a connection of its own: the same first frame and one byte more, then empty frames.
"""

import asyncio
import hmac
import secrets
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import msgspec

from cluster.replica.witness import Witness
from cluster.workers.channel import set_tcp_options
from engine.outputs import RequestOutput
from engine.stats import EngineStats

TOKEN_BYTES = 32
NAME_BYTES = 16  # of a connection's name, in hexadecimal
HELLO_SECONDS = 5.0
MAX_FRAME_BYTES = 256 << 20
MAX_UNSENT_BYTES = 256 << 20  # for a gateway that takes nothing any more
# Silence is counted in turns of the gateway's own loop: a gateway that was itself stopped blames
# nobody. A pause of two seconds, as starved machines have them, is not one yet.
TURN_SECONDS = 0.1
SILENT_TURNS = 27
# The same of a replica whose witness says that its process is there: it computes, and comes to no
# word. Not for ever.
BUSY_TURNS = 300
OF_A_WITNESS = b"w"  # behind the token and the name
_LENGTH = struct.Struct(">I")
_WELCOME = b"\x01"


@dataclass(frozen=True, slots=True)
class EngineReport:
    """How an engine replica is. `problem` is why it cannot answer now, a line; `pid` is its process
    on `node`.
    """

    replica: str
    node: str
    pid: int
    problem: str | None
    stats: EngineStats
    fingerprint: str = ""
    arithmetic: dict[str, str] = field(default_factory=dict)  # what the fingerprint is of


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """Where a gateway takes deltas, and the token that it wants to see first."""

    host: str
    port: int
    token: bytes = field(repr=False)


class News(msgspec.Struct, array_like=True):
    """What one frame carries."""

    deltas: list[RequestOutput]
    report: EngineReport | None = None


class DeltaServer:
    """The gateway's end. The callbacks are called in the event loop, with the connection's name.

    `on_silent` is called, with the replica's last report and the seconds, just before the
    connection is broken off for its silence.
    """

    def __init__(
        self,
        on_deltas: Callable[[list[RequestOutput], str], None],
        on_lost: Callable[[str], None],
        on_silent: Callable[[EngineReport, float], None],
    ) -> None:
        self._on_deltas = on_deltas
        self._on_lost = on_lost
        self._on_silent = on_silent
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._decoder = msgspec.msgpack.Decoder(News)
        self._connections: dict[str, _Incoming] = {}
        self._serving: dict[
            asyncio.Task[None] | None, asyncio.StreamWriter
        ] = {}  # replicas, witnesses, and who else calls

    async def start(self, host: str) -> GatewayAddress:
        """Listen on a free port of `host`, which the engines should reach, and nobody from
        outside.
        """
        self._server = await asyncio.start_server(self._serve, host, 0)
        self._listening = asyncio.create_task(self._listen_for_silence())
        port: int = self._server.sockets[0].getsockname()[1]
        return GatewayAddress(host, port, self._token)

    async def close(self) -> None:
        self._listening.cancel()
        self._server.close()
        for writer in self._serving.values():
            writer.close()
        await asyncio.gather(*filter(None, self._serving), return_exceptions=True)
        await self._server.wait_closed()

    def is_connected(self, connection: str) -> bool:
        return connection in self._connections

    def reports(self) -> list[EngineReport]:
        """The last report of each replica that is connected."""
        return [incoming.report for incoming in self._connections.values() if incoming.report is not None]

    def in_trouble(self, seconds: float) -> list[tuple[str, str]]:
        """Connections whose replica has said for so long that it cannot answer, and what it
        says.
        """
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

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._serving[task] = writer
        try:
            name = await self._greet(reader)
            if name is None:
                return
            set_tcp_options(writer.get_extra_info("socket"))
            connection = name[:NAME_BYTES].hex()
            if name[NAME_BYTES:] == OF_A_WITNESS:
                await self._hear_witness(connection, reader)
            else:
                writer.write(_WELCOME)
                await self._receive(connection, reader, writer)
        finally:
            del self._serving[task]
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader) -> bytes | None:
        """The connection's name, if it shows the token in time; of a witness', whom it speaks for
        and OF_A_WITNESS.
        """
        with suppress(TimeoutError, asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError):
            async with asyncio.timeout(HELLO_SECONDS):
                hello = await _read_frame(reader, limit=TOKEN_BYTES + NAME_BYTES + len(OF_A_WITNESS))
            if hmac.compare_digest(hello[:TOKEN_BYTES], self._token):
                return hello[TOKEN_BYTES:]
        return None

    async def _hear_witness(self, connection: str, reader: asyncio.StreamReader) -> None:
        """Until it, or the connection that it speaks of, ends."""
        with suppress(asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError):
            while connection in self._connections:
                self._connections[connection].num_unwitnessed_turns = 0
                await _read_frame(reader, limit=0)

    async def _receive(self, connection: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        incoming = self._connections[connection] = _Incoming(writer)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError):
                while True:
                    news = self._decoder.decode(await _read_frame(reader, MAX_FRAME_BYTES))
                    incoming.num_silent_turns = incoming.num_unwitnessed_turns = 0
                    incoming.report = news.report or incoming.report
                    if incoming.report is None or incoming.report.problem is None:
                        incoming.well = time.monotonic()
                    if news.deltas:
                        self._on_deltas(news.deltas, connection)
        finally:
            del self._connections[connection]
            self._on_lost(connection)


class DeltaClient:
    """The engine replica's end: one connection for each gateway that it has requests of. Lives in
    one event loop.
    """

    def __init__(self, on_lost: Callable[[GatewayAddress], None]) -> None:
        self._on_lost = on_lost
        self._witness = Witness()
        self._encoder = msgspec.msgpack.Encoder()
        self._connections: dict[GatewayAddress, _Connection] = {}
        # One for each address, while someone connects to it: a gateway that is slow to answer holds
        # up its own requests only.
        self._connecting: WeakValueDictionary[GatewayAddress, asyncio.Lock] = WeakValueDictionary()

    async def connect(self, address: GatewayAddress) -> str:
        """The name of the connection to the gateway, which knows it by now; raises OSError."""
        if address not in self._connections:
            lock = self._connecting.setdefault(address, asyncio.Lock())
            async with lock:
                if address not in self._connections:
                    self._connections[address] = await self._open(address)
        return self._connections[address].name

    def send(self, address: GatewayAddress, deltas: list[RequestOutput]) -> None:
        """Send one step's deltas; those for a gateway that has gone are dropped: `on_lost` has
        told.
        """
        connection = self._connections.get(address)
        if connection is not None:
            connection.writer.write(_frame(self._encoder.encode(News(deltas))))
            if connection.writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                connection.writer.transport.abort()

    def report(self, report: EngineReport) -> None:
        """Tell every gateway how the replica is."""
        self._witness.renew()
        frame = _frame(self._encoder.encode(News([], report)))
        for connection in self._connections.values():
            connection.writer.write(frame)

    async def close(self) -> None:
        watches = [connection.watch for connection in self._connections.values()]
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        self._witness.close()

    async def _open(self, address: GatewayAddress) -> "_Connection":
        where = f"the gateway at {address.host}:{address.port}"
        name = secrets.token_bytes(NAME_BYTES)
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                reader, writer = await asyncio.open_connection(address.host, address.port)
                try:
                    set_tcp_options(writer.get_extra_info("socket"))
                    writer.write(_frame(address.token + name))
                    if await reader.read(1) != _WELCOME:
                        raise ConnectionRefusedError(f"{where} did not take our token")
                except BaseException:
                    writer.close()
                    raise
        except TimeoutError:
            raise TimeoutError(f"{where} did not answer within {HELLO_SECONDS:.0f} s") from None
        greeting = address.token + name + OF_A_WITNESS
        self._witness.vouch(address.host, address.port, greeting)
        return _Connection(name.hex(), writer, asyncio.create_task(self._watch(address, greeting, reader, writer)))

    async def _watch(
        self, address: GatewayAddress, greeting: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """After its welcome a gateway sends nothing: whatever is read is the end."""
        try:
            with suppress(ConnectionError):
                await reader.read(1)
        finally:
            del self._connections[address]
            self._witness.forget(greeting)
            writer.close()
            self._on_lost(address)


@dataclass(slots=True)
class _Incoming:
    writer: asyncio.StreamWriter
    num_silent_turns: int = 0
    num_unwitnessed_turns: int = 0  # in which neither the replica nor its witness said a word
    report: EngineReport | None = None
    well: float = field(default_factory=time.monotonic)  # when it last was


@dataclass(frozen=True, slots=True)
class _Connection:
    name: str
    writer: asyncio.StreamWriter
    watch: asyncio.Task[None]


def _frame(payload: bytes) -> bytes:
    return _LENGTH.pack(len(payload)) + payload


async def _read_frame(reader: asyncio.StreamReader, limit: int) -> bytes:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > limit:
        raise msgspec.DecodeError(f"a frame of {length} bytes, at most {limit} are taken")
    return await reader.readexactly(length)
