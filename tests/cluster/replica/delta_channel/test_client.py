"""The delta channel's ends: a gateway that does not answer holds up nobody, and a node that
vanishes is noticed.
"""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from cluster.replica.delta_channel import client as own_end
from cluster.replica.delta_channel.client import DeltaClient
from cluster.replica.delta_channel.messages import GatewayAddress
from cluster.replica.delta_channel.server import DeltaServer

SECONDS = 30  # more than anything here takes


class SilentGateway:
    """Takes connections and answers none; `has_ended` once the first one has ended."""

    def __init__(self) -> None:
        self.was_greeted = asyncio.Event()
        self.has_ended = asyncio.Event()

    async def start(self) -> GatewayAddress:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return GatewayAddress("127.0.0.1", self._server.sockets[0].getsockname()[1], b"x" * 32)

    async def close(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        self.was_greeted.set()
        await reader.read()
        self.has_ended.set()
        writer.close()


@pytest.fixture
async def silent() -> AsyncIterator[tuple[SilentGateway, GatewayAddress]]:
    gateway = SilentGateway()
    yield gateway, await gateway.start()
    await gateway.close()


@pytest.fixture
async def server() -> AsyncIterator[tuple[DeltaServer, GatewayAddress]]:
    server = DeltaServer(lambda deltas, connection: None, lambda connection: None, lambda report, seconds: None)
    yield server, await server.start("127.0.0.1")
    await server.close()


@pytest.fixture
async def client() -> AsyncIterator[DeltaClient]:
    client = DeltaClient(lambda address: None)
    yield client
    await client.close()


async def test_a_silent_gateway_holds_up_no_other(client, silent, server) -> None:
    gateway, address = silent
    waiting = asyncio.create_task(client.connect(address))
    await gateway.was_greeted.wait()
    name = await asyncio.wait_for(client.connect(server[1]), own_end.HELLO_SECONDS / 2)
    assert server[0].is_connected(name)
    waiting.cancel()
    await asyncio.wait_for(gateway.has_ended.wait(), SECONDS)


async def test_a_silent_gateway_is_given_up(client, silent, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway, address = silent
    monkeypatch.setattr(own_end, "HELLO_SECONDS", 0.1)
    with pytest.raises(TimeoutError, match=f"the gateway at 127.0.0.1:{address.port} did not answer within"):
        await asyncio.wait_for(client.connect(address), SECONDS)
    await asyncio.wait_for(gateway.has_ended.wait(), SECONDS)


async def test_many_requests_share_one_connection(client, server) -> None:
    names = await asyncio.gather(*(client.connect(server[1]) for _ in range(20)))
    assert len(set(names)) == 1


async def test_a_connection_is_closed_before_it_is_watched(client, server) -> None:
    name = await client.connect(server[1])
    [connection] = client._connections.values()  # nothing has been awaited since its watch was made
    assert connection.name == name
    await client.close()
    assert connection.writer.is_closing()


async def test_a_vanished_node_is_noticed_at_both_ends(client, server) -> None:
    """A replica's also by its silence, so what it has not read need not end the connection."""
    name = await client.connect(server[1])
    ends = ((server[0]._connections[name].writer, 0), (client._connections[server[1]].writer, 5000))
    for writer, unread_ms in ends:
        end = writer.get_extra_info("socket")
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        silence = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        assert [end.getsockopt(socket.IPPROTO_TCP, option) for option in silence] == [2, 1, 3, unread_ms]
