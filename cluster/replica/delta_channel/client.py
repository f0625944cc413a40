"""The engine replica's end of the delta channel."""

import asyncio
import secrets
from collections.abc import Callable
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
    write_frame,
)
from cluster.replica.delta_channel.taken import Take, TakenCalls, take_none
from cluster.replica.delta_channel.told import MAX_TOLD_BYTES, Told
from cluster.replica.delta_channel.witness import Witness
from cluster.sockets import frame, set_tcp_options
from engine.outputs import RequestOutput

MAX_UNSENT_BYTES = 256 << 20  # for a gateway that stopped reading
CLOSE_SECONDS = 1.0  # for calls to end


class DeltaClient:
    """The engine replica's end: one connection for each gateway that it has requests of. Lives in
    one event loop.
    """

    def __init__(self, on_lost: Callable[[GatewayAddress], None], take: Take = take_none) -> None:
        """`take`: see `Requests.take`."""
        self._on_lost = on_lost
        self._take = take
        self._witness = Witness()
        self._encoder = msgspec.msgpack.Encoder()
        self._connections: dict[GatewayAddress, _Connection] = {}
        self._told = Told()
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
        self._send(address, News([as_sent(delta) for delta in deltas]))

    def _send(self, address: GatewayAddress, news: News) -> None:
        connection = self._connections.get(address)
        if connection is not None:
            write_frame(connection.writer, self._encoder.encode(news))
            if connection.writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                connection.writer.transport.abort()

    def report(self, report: EngineReport, lost: bytes = b"") -> None:
        """Send the report to every gateway, with what others have asked for meanwhile, and the
        beginnings of prompts that the cache has `lost`.
        """
        self._witness.renew()
        if self._told.has_lost(lost, report.num_cleared):
            for connection in self._connections.values():
                connection.untold.clear()
        num_gateways = len(self._connections)
        news = self._encoder.encode(News([], report, num_gateways=num_gateways, lost=lost))
        for connection in self._connections.values():
            if connection.untold:
                untold = bytes(connection.untold)
                told = News([], report, num_gateways=num_gateways, beginnings=untold, lost=lost)
                connection.untold.clear()
                write_frame(connection.writer, self._encoder.encode(told))
            else:
                write_frame(connection.writer, news)

    def hear(self, source: GatewayAddress, beginnings: bytes) -> None:
        """The engine has accepted a prompt with these from a gateway."""
        new = self._told.hear(beginnings)
        if new:
            for address, connection in self._connections.items():
                if address != source:
                    connection.untold.extend(new)
                    del connection.untold[:-MAX_TOLD_BYTES]

    async def close(self) -> None:
        """The calls have ended, or end now."""
        calls = [call for connection in self._connections.values() for call in connection.calls.running.values()]
        if calls:
            await asyncio.wait(calls, timeout=CLOSE_SECONDS)
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
        calls = TakenCalls(self._take, address, lambda answer: self._send(address, News([], answers=[answer])))
        watch = asyncio.create_task(self._watch(address, greeting, calls, reader, writer))
        return _Connection(name.hex(), writer, calls, watch, self._told.recent())

    async def _watch(
        self,
        address: GatewayAddress,
        greeting: bytes,
        calls: TakenCalls,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Until the connection ends."""
        try:
            await calls.read(reader)
        finally:
            del self._connections[address]
            self._witness.forget(greeting)
            writer.close()
            self._on_lost(address)


@dataclass(frozen=True, slots=True)
class _Connection:
    name: str
    writer: asyncio.StreamWriter
    calls: TakenCalls
    watch: asyncio.Task[None]
    untold: bytearray  # beginnings that have come from others
