"""The calls of one gateway that an engine replica has taken; see `delta_channel.calls`."""

import asyncio
import logging
import pickle
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import msgspec

from cluster.replica.delta_channel.messages import Answer, GatewayAddress, read_frame
from cluster.replica.delta_channel.packed_calls import read_call
from cluster.replica.refusals.refusal import Refusal
from cluster.sockets import MAX_FRAME_BYTES
from engine.request import Request

logger = logging.getLogger("squadron.engine")

Take = Callable[[Request, GatewayAddress], Awaitable[Refusal | str]]


async def take_none(request: Request, gateway: GatewayAddress) -> Refusal:
    return Refusal("engine_dead", "it takes no calls")


class TakenCalls:
    """Over one connection."""

    def __init__(self, take: Take, gateway: GatewayAddress, answer: Callable[[Answer], None]) -> None:
        """`take`: see `Requests.take`; `answer` sends an answer."""
        self._take = take
        self._gateway = gateway
        self._send_answer = answer
        self.running: dict[int, asyncio.Task[None]] = {}  # by number

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Take calls until the connection ends; then nobody waits for them any more."""
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    number, request = read_call(await read_frame(reader, MAX_FRAME_BYTES))
                    if request is not None:
                        self._begin(number, request)
                    elif number in self.running:
                        self.running[number].cancel()
        except (pickle.UnpicklingError, msgspec.DecodeError) as error:
            logger.error("what a gateway sent is no call, and its connection is closed: %s", error)
        finally:
            for call in self.running.values():  # each forgets itself, but not at once
                call.cancel()

    def _begin(self, number: int, request: Request) -> None:
        self.running[number] = asyncio.create_task(self._answer(number, request))
        self.running[number].add_done_callback(partial(self._forget, number))

    async def _answer(self, number: int, request: Request) -> None:
        try:
            taken = await self._take(request, self._gateway)
        except Exception as error:
            logger.exception("a call failed")
            taken = Refusal("engine_dead", f"its call failed: {error!r}")
        self._send_answer(Answer(number, taken if isinstance(taken, Refusal) else None))

    def _forget(self, number: int, _: asyncio.Task[None]) -> None:
        del self.running[number]
