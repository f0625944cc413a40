"""The delta channel: engine replicas connect to a gateway and send it, once a step, the deltas of all its requests.

A frame is its length (4 bytes, big-endian) and as many bytes. The first frame of a connection is the gateway's token and the
name that the engine gives the connection; the gateway answers with one byte, and never again. Every other frame is a msgpack
list of `RequestOutput`. Whoever goes away is noticed by the end of the connection.
"""

import asyncio
import hmac
import secrets
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import msgspec

from cluster.channel import set_tcp_options
from engine.outputs import RequestOutput

TOKEN_BYTES = 32
NAME_BYTES = 16  # of a connection's name, in hexadecimal
HELLO_SECONDS = 5.0
MAX_FRAME_BYTES = 256 << 20
_LENGTH = struct.Struct(">I")
_WELCOME = b"\x01"


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """Where a gateway takes deltas, and the token that it wants to see first."""

    host: str
    port: int
    token: bytes = field(repr=False)


class DeltaServer:
    """The gateway's end. `on_deltas` and `on_lost` are called in the event loop, with the connection's name."""

    def __init__(self, on_deltas: Callable[[list[RequestOutput], str], None], on_lost: Callable[[str], None]) -> None:
        self._on_deltas = on_deltas
        self._on_lost = on_lost
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._decoder = msgspec.msgpack.Decoder(list[RequestOutput])
        self._connections: dict[str, asyncio.StreamWriter] = {}

    async def start(self, host: str) -> GatewayAddress:
        """Listen on a free port of `host`, which the engines should reach, and nobody from outside."""
        self._server = await asyncio.start_server(self._serve, host, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return GatewayAddress(host, port, self._token)

    async def close(self) -> None:
        self._server.close()
        for writer in self._connections.values():
            writer.close()
        await self._server.wait_closed()

    def is_connected(self, connection: str) -> bool:
        return connection in self._connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            connection = await self._greet(reader)
            if connection is not None:
                set_tcp_options(writer.get_extra_info("socket"))
                writer.write(_WELCOME)
                await self._receive(connection, reader, writer)
        finally:
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader) -> str | None:
        """The connection's name, if it shows the token in time."""
        with suppress(TimeoutError, asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError):
            async with asyncio.timeout(HELLO_SECONDS):
                hello = await _read_frame(reader, limit=TOKEN_BYTES + NAME_BYTES)
            if hmac.compare_digest(hello[:TOKEN_BYTES], self._token):
                return hello[TOKEN_BYTES:].hex()
        return None

    async def _receive(self, connection: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections[connection] = writer
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError):
                while True:
                    self._on_deltas(self._decoder.decode(await _read_frame(reader, MAX_FRAME_BYTES)), connection)
        finally:
            del self._connections[connection]
            self._on_lost(connection)


class DeltaClient:
    """The engine replica's end: one connection for each gateway that it has requests of. Lives in one event loop."""

    def __init__(self, on_lost: Callable[[GatewayAddress], None]) -> None:
        self._on_lost = on_lost
        self._encoder = msgspec.msgpack.Encoder()
        self._connections: dict[GatewayAddress, _Connection] = {}
        # One for each address, while someone connects to it: a gateway that is slow to answer holds up its own requests only.
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
        """Send one step's deltas; those for a gateway that has gone are dropped: `on_lost` has told."""
        connection = self._connections.get(address)
        if connection is not None:
            connection.writer.write(_frame(self._encoder.encode(deltas)))

    async def close(self) -> None:
        watches = [connection.watch for connection in self._connections.values()]
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

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
        return _Connection(name.hex(), writer, asyncio.create_task(self._watch(address, reader, writer)))

    async def _watch(self, address: GatewayAddress, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """After its welcome a gateway sends nothing: whatever is read is the end."""
        try:
            with suppress(ConnectionError):
                await reader.read(1)
        finally:
            del self._connections[address]
            writer.close()
            self._on_lost(address)


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
