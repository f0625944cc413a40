"""One request after the other, in turns of an event loop."""

import asyncio
from collections import deque


class OneATurn:
    """Of one event loop: whoever waits goes on in the order of coming, one in each turn of the
    loop. If nobody went in this turn, the next one goes at once.

    Where hundreds begin at the same moment, each turn would do a part of the work of all of them,
    and who is to be refused, which is quick, would wait for turns of a tenth of a second.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_taken = False  # this turn

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        if self._is_taken:
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._is_taken = True
            loop.call_soon(self._next)

    def _next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # otherwise who waited was cancelled
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._next)
                return
        self._is_taken = False
