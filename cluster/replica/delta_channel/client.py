"""The engine replica's end of the delta channel."""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakValueDictionary

import msgspec

from cluster.replica.delta_channel.messages import (
    HELLO_SECONDS,
    NAME_BYTES,
    OF_A_WITNESS,
    WELCOME,
    EngineReport,
    GatewayAddress,
    News,
    as_sent,
)
from cluster.replica.delta_channel.witness import Witness
from cluster.sockets import frame, set_tcp_options
from engine.outputs import RequestOutput

MAX_UNSENT_BYTES = 256 << 20  # for a gateway that stopped reading


class DeltaClient:
    """The engine replica's end: one connection for each gateway that it has requests of. Lives in
    one event loop.
    """

    def __init__(self, on_lost: Callable[[GatewayAddress], None]) -> None:
        self._on_lost = on_lost
        self._witness = Witness()
        self._encoder = msgspec.msgpack.Encoder()
        self._connections: dict[GatewayAddress, _Connection] = {}
        # One per address, while a task connects to it: a slow gateway delays only its own requests.
        self._connecting: WeakValueDictionary[GatewayAddress, asyncio.Lock] = WeakValueDictionary()

    async def connect(self, address: GatewayAddress) -> str:
        """The name of the connection, which the gateway knows from now on; raises OSError."""
        if address not in self._connections:
            lock = self._connecting.setdefault(address, asyncio.Lock())
            async with lock:
                if address not in self._connections:
                    self._connections[address] = await self._open(address)
        return self._connections[address].name

    def send(self, address: GatewayAddress, deltas: list[RequestOutput]) -> None:
        """Send one step's deltas; those for a lost gateway are dropped: `on_lost` has reported
        it.
        """
        connection = self._connections.get(address)
        if connection is not None:
            connection.writer.write(frame(self._encoder.encode(News([as_sent(delta) for delta in deltas]))))
            if connection.writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                connection.writer.transport.abort()

    def report(self, report: EngineReport) -> None:
        """Send the report to every gateway."""
        self._witness.renew()
        news = frame(self._encoder.encode(News([], report)))
        for connection in self._connections.values():
            connection.writer.write(news)

    async def close(self) -> None:
        watches = [connection.watch for connection in self._connections.values()]
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        for connection in self._connections.values():  # whose watch had not begun
            connection.writer.close()
        self._connections.clear()
        self._witness.close()

    async def _open(self, address: GatewayAddress) -> "_Connection":
        where = f"the gateway at {address.host}:{address.port}"
        name = secrets.token_bytes(NAME_BYTES)
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                reader, writer = await asyncio.open_connection(address.host, address.port)
                try:
                    set_tcp_options(writer.get_extra_info("socket"))
                    writer.write(frame(address.token + name))
                    if await reader.read(1) != WELCOME:
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
        """After its welcome a gateway sends nothing, so anything that is read means the end."""
        try:
            with suppress(ConnectionError):
                await reader.read(1)
        finally:
            del self._connections[address]
            self._witness.forget(greeting)
            writer.close()
            self._on_lost(address)


@dataclass(frozen=True, slots=True)
class _Connection:
    name: str
    writer: asyncio.StreamWriter
    watch: asyncio.Task[None]
