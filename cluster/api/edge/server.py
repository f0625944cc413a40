"""The HTTP server of one of Serve's proxies: uvicorn's, which can be closed without a broken
connection.
"""

import asyncio
import contextlib
import ctypes
import socket
import struct
from typing import ClassVar

import uvicorn
from starlette.types import Scope

from cluster.api.edge.tls import RenewedContext
from cluster.certificate import CERTFILE, CertificateFiles
from engine.errors import InvalidConfig

ACCEPT_SECONDS = 0.3  # for a connection to be established, once begun
LINGER_SECONDS = 1.0
ACCEPTS = 32  # connections in one turn of the event loop
_SO_ATTACH_FILTER = 26  # Linux: which packets a socket takes
# A program of the kernel's packet filter: byte 13 of a TCP header has the flags; take the packet if
# ACK is among them, which all but the first of a connection have.
_BEGIN_NOTHING = [(0x30, 0, 0, 13), (0x45, 0, 1, 0x10), (0x06, 0, 0, 0xFFFFFFFF), (0x06, 0, 0, 0)]
_CLOSING = "squadron.closing"  # in the state that uvicorn gives to every request


class ProxyServer(uvicorn.Server):
    """For a request that arrives while the server is being closed, `is_closing` is true.

    uvicorn closes the port and all idle connections at once: a client that has just connected, or
    sends the next request on a connection, gets a reset.
    """

    in_this_process: ClassVar[list["ProxyServer"]] = []
    address: ClassVar[str] = ""  # to listen on instead of where Serve says
    certificate: ClassVar[CertificateFiles | None] = None  # None: without TLS, unless Serve says
    is_behind_haproxy: ClassVar[bool] = False

    def __init__(self, config: uvicorn.Config) -> None:
        if self.is_behind_haproxy and config.is_ssl:
            raise InvalidConfig(f"http_options.ssl_certfile={config.ssl_certfile} is not for HAProxy: set {CERTFILE}")
        super().__init__(config)
        self.is_closed = False
        self.in_this_process.append(self)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        if self.address and sockets:
            sockets = [_moved(listener, self.address) for listener in sockets]
        # uvloop accepts one connection of a socket in a turn. A busy loop's turns take tens of
        # milliseconds, so that refusals, which are quick, would wait for seconds to be asked for.
        sockets = [copy for listener in sockets or [] for copy in _copies(listener)] or None
        if self.certificate is None:
            await super().serve(sockets)
            return
        renewed = RenewedContext(self.certificate)
        self.config.load()
        self.config.ssl = renewed.context
        keeping = asyncio.create_task(renewed.keep())
        try:
            await super().serve(sockets)
        finally:
            keeping.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Returns when the last connection has ended."""
        self.lifespan.state[_CLOSING] = True
        for listener in sockets or []:
            begin_no_connection(listener)
        await asyncio.sleep(ACCEPT_SECONDS)
        for server in self.servers:
            server.close()
        await self.linger()
        await super().shutdown(sockets)
        self.is_closed = True

    async def linger(self) -> None:
        """Wait for requests of connected clients."""
        await asyncio.sleep(LINGER_SECONDS)


def _copies(listener: socket.socket) -> list[socket.socket]:
    """ACCEPTS descriptors of the same socket, with `listener` among them."""
    return [listener, *(listener.dup() for _ in range(ACCEPTS - 1))]


def _moved(listener: socket.socket, address: str) -> socket.socket:
    """One on another address and the same port, for one that is bound and takes no connections
    yet. The port is never free for another process in between.
    """
    port = listener.getsockname()[1]
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the next one has: then both may have the port
    moved = socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.close()
    return moved


def begin_no_connection(listener: socket.socket) -> None:
    """The kernel establishes connections by itself, and resets those not accepted yet when the port
    is closed. From now on it drops a client's first packet; the second, a second later, will be
    refused. Without packet filters (some sandboxes have none) such a client gets its reset.
    """
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in _BEGIN_NOTHING))
    address = struct.pack("HL", len(_BEGIN_NOTHING), ctypes.addressof(program))
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, address)


def is_closing(scope: Scope) -> bool:
    return _CLOSING in scope.get("state", {})


def close_servers(_proxy: object) -> None:
    """Begin to close the servers of this process, as `__ray_call__` of a proxy's actor calls it."""
    for server in ProxyServer.in_this_process:
        server.should_exit = True


def are_servers_closed(_proxy: object) -> bool:
    return all(server.is_closed for server in ProxyServer.in_this_process)
