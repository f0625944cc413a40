"""Has the engine replicas that run connect to a gateway: only those that are not connected, each
more and more rarely as long as it does not, since it may be frozen. If the gateway reaches none for
too long, it exits, because its replacement may.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ray.exceptions import RayError

from cluster.replica.calls.direct import connect_replica
from cluster.replica.calls.engines import Engines
from cluster.replica.delta_channel.messages import GatewayAddress

logger = logging.getLogger("squadron.gateway")

INTRODUCTION_SECONDS = 1.0  # between checks for replicas that are not connected
BLIND_SECONDS = (
    10.0  # during which replicas run but none can be reached: Serve, or its part in this process, has failed
)
CONNECT_SECONDS = 3.0  # for replicas to connect to this gateway
LONGEST_PAUSE = 32  # turns between two calls

EACH = ""  # in place of a replica's name, while Serve has told this process of none

ConnectAll = Callable[[GatewayAddress], Awaitable[None]]


class Reach:
    """One gateway's check."""

    def __init__(self, engines: Engines, address: GatewayAddress) -> None:
        self._engines = engines
        self._address = address
        self._blind_since: float | None = None

    async def look(self, connected: set[str], *, is_served: bool) -> None:
        """Make replicas that are not `connected` connect, and end the process if no running one
        could be reached for BLIND_SECONDS. `is_served`: a replica is answering a request now. Must
        be called every INTRODUCTION_SECONDS.
        """
        is_reached = await self._engines.introduce(self._address, connected)
        if is_reached or is_served or not await self._engines.are_running():
            self._blind_since = None
            return
        now = time.monotonic()
        self._blind_since = self._blind_since or now
        if now - self._blind_since > BLIND_SECONDS:
            logger.error("engine replicas run, and none could be reached from here for %.0f s", BLIND_SECONDS)
            self._blind_since = None
            await self._engines.leave()


@dataclass(slots=True)
class _Waiting:
    pause: int = 0  # turns, after the last call
    num_left: int = 0  # turns before the next one
    call: "asyncio.Task[bool] | None" = None  # the last one; whether it was answered


class Introductions:
    """One gateway's. Lives in one event loop."""

    def __init__(self, connect_all: ConnectAll) -> None:
        """`connect_all`: raises ValueError if not all replicas have connected."""
        self._connect_all = connect_all
        self._waiting: dict[str, _Waiting] = {}  # by replica
        self._open: set[asyncio.Task[bool]] = set()  # calls, also of replicas that are gone

    async def turn(self, gateway: GatewayAddress, missing: set[str], *, is_reached: bool) -> bool:
        """`missing`: running replicas that are not connected, or EACH; `is_reached`: another one
        is. Whether any could be reached. A turn with none waits for those that were called, for
        CONNECT_SECONDS at most.
        """
        self._waiting = {name: self._waiting.get(name) or _Waiting() for name in sorted(missing)}
        for name, each in self._waiting.items():
            if each.call is not None and not each.call.done():
                continue
            each.num_left -= 1
            if each.num_left < 0 or not is_reached:
                each.pause = each.num_left = min(2 * each.pause + 1, LONGEST_PAUSE)
                each.call = asyncio.create_task(self._introduce(name, gateway))
                self._open.add(each.call)
                each.call.add_done_callback(self._open.discard)
        calls = [each.call for each in self._waiting.values() if each.call is not None]
        return is_reached or await _is_any_answered(calls)

    async def _introduce(self, name: str, gateway: GatewayAddress) -> bool:
        try:
            await (self._connect_all(gateway) if name == EACH else connect_replica(name, gateway))
        except (RayError, ValueError):
            return False
        return True


async def _is_any_answered(calls: "Sequence[asyncio.Task[bool]]") -> bool:
    if calls:
        await asyncio.wait(calls, timeout=CONNECT_SECONDS)
    return any(call.done() and call.result() for call in calls)
