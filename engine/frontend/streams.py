"""Requests as streams: each caller gets its own request's deltas, in its own event loop."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from functools import partial

from engine.outputs import RequestOutput
from engine.request import Request


class Streams:
    """`add` and `abort` are the engine's, and may block; outputs come by `deliver`, from the
    engine's thread.
    """

    def __init__(self, add: Callable[[Request], None], abort: Callable[[str], None]) -> None:
        self._add = add
        self._abort = abort
        self._put: dict[str, Callable[[RequestOutput], None]] = {}
        self._numbers = itertools.count()

    async def generate(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        """A request's deltas as they come; closing the iterator aborts it.

        Ids may repeat: requests with the same id are independent.
        """
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[RequestOutput] = asyncio.Queue()
        key = f"{request.id}#{next(self._numbers)}"
        self._put[key] = lambda output: _put(loop, queue, output)
        adding = asyncio.ensure_future(asyncio.to_thread(self._add, replace(request, id=key)))
        try:
            await asyncio.shield(adding)
            finished = False
            while not finished:
                output = await queue.get()
                finished = output.finished
                yield replace(output, request_id=request.id)
        finally:
            del self._put[key]
            if adding.done():
                self._left(key, adding)  # at once: a callback would come after what the caller does next
            else:  # the caller left while it was tokenizing
                adding.add_done_callback(partial(self._left, key))

    def _left(self, key: str, adding: "asyncio.Future[None]") -> None:
        if not adding.cancelled() and adding.exception() is None:
            self._abort(key)

    def deliver(self, outputs: list[RequestOutput]) -> None:
        """Those of requests that no stream is for are ignored."""
        for output in outputs:
            put = self._put.get(output.request_id)
            if put is not None:
                put(output)


def _put(loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[RequestOutput], output: RequestOutput) -> None:
    """Hand an output over to the caller's event loop, if that still runs."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(queue.put_nowait, output)
