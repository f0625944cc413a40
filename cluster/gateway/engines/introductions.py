"""Has the engine replicas that run connect to a gateway: only those that are not connected, each
more and more rarely as long as it does not, since it may be frozen.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError

from cluster.replica.delta_channel.messages import GatewayAddress

CONNECT_SECONDS = 3.0  # for replicas to connect to this gateway
LONGEST_PAUSE = 32  # turns between two calls

Call = Callable[[str, GatewayAddress], Awaitable[Any]]


@dataclass(slots=True)
class _Waiting:
    pause: int = 0  # turns, after the last call
    num_left: int = 0  # turns before the next one
    call: "asyncio.Task[bool] | None" = None  # the last one; whether it was answered


class Introductions:
    """One gateway's. Lives in one event loop."""

    def __init__(self, call: Call) -> None:
        """`call`: have the replica of that name connect. Raises RayError, or ValueError if there is
        none.
        """
        self._call = call
        self._waiting: dict[str, _Waiting] = {}  # by replica
        self._open: set[asyncio.Task[bool]] = set()  # calls, also of replicas that are gone

    async def turn(self, gateway: GatewayAddress, missing: set[str], *, is_reached: bool) -> bool:
        """`missing`: running replicas that are not connected; `is_reached`: another one is. Whether
        any could be reached. A turn with none waits for those that were called, for CONNECT_SECONDS
        at most.
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
            await self._call(name, gateway)
        except (RayError, ValueError):
            return False
        return True


async def _is_any_answered(calls: "Sequence[asyncio.Task[bool]]") -> bool:
    if calls:
        await asyncio.wait(calls, timeout=CONNECT_SECONDS)
    return any(call.done() and call.result() for call in calls)
