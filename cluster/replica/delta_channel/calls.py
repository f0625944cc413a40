"""Calls over the delta channel: a gateway sends a request to the engine replica at the other end of
a connection. A call through Serve's router does the same for ten times the processor time.

A frame to a replica holds the call's number and the request, whose `beginnings` the replica tells
its other gateways once its engine has accepted it. Without a request, the gateway does not want the
rest. The answer, `messages.Answer`, comes behind the request's last delta. See `packed_calls` for
the frame itself.
"""

import asyncio
from collections.abc import Callable

from cluster.replica.delta_channel.messages import write_frame
from cluster.replica.delta_channel.packed_calls import packed_call
from cluster.replica.refusals.lost import EngineLost
from cluster.replica.refusals.refusal import Refusal
from cluster.sockets import MAX_FRAME_BYTES
from engine.request import Request

MAX_UNSENT_BYTES = 64 << 20  # of requests to a replica that reads nothing


class OpenCalls:
    """The gateway's end of one connection."""

    def __init__(self, connection: str, writer: asyncio.StreamWriter) -> None:
        """`connection`: its name."""
        self._connection = connection
        self._writer = writer
        self.num_begun = 0
        self.num_seqs = 0  # of the open calls' requests
        self._num_seqs_since = 0  # the last report
        self._num_gateways = 1
        self._open: dict[int, asyncio.Future[Refusal | str]] = {}

    @property
    def is_full(self) -> bool:
        """Whether as much waits to be sent as may: the replica reads nothing."""
        return self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES

    @property
    def num_unreported(self) -> int:
        """Sequences that the replica has probably got since it told how many it has: those of this
        gateway, and as many of each other one, which choose by the same report. Without them, all
        would go on filling the replica that was the least busy.
        """
        return min(self.num_seqs, self._num_seqs_since) * self._num_gateways

    def reported(self, num_gateways: int) -> None:
        """The replica has told how many sequences it has, and how many gateways."""
        self._num_seqs_since = 0
        self._num_gateways = num_gateways

    def begin(self, request: Request) -> "ChannelCall | None":
        """Send the request; None if it is larger than a frame. Raises InvalidRequest for one that
        holds what no replica would read, as a date that was passed by a handle.
        """
        number = self.num_begun
        payload = packed_call(number, request)
        if len(payload) > MAX_FRAME_BYTES:
            return None
        self.num_begun += 1
        num_seqs = request.params.num_samples
        self.num_seqs += num_seqs
        self._num_seqs_since += num_seqs
        write_frame(self._writer, payload)
        answer = self._open[number] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: self._end(number, num_seqs, answer))
        return ChannelCall(answer)

    def answer(self, number: int, refusal: Refusal | None) -> None:
        """The replica has ended the call of that number."""
        answer = self._open.get(number)  # not there: it has been cancelled
        if answer is not None and not answer.done():
            answer.set_result(refusal or self._connection)

    def lose(self) -> None:
        """The connection has ended."""
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(EngineLost("its connection ended"))

    def _end(self, number: int, num_seqs: int, answer: asyncio.Future[Refusal | str]) -> None:
        del self._open[number]
        self.num_seqs -= num_seqs
        if answer.cancelled():
            write_frame(self._writer, packed_call(number, None))
        else:
            answer.exception()  # has been looked at: nobody may be waiting any more


class ChannelCall:
    """See `EngineCall`."""

    def __init__(self, answer: asyncio.Future[Refusal | str]) -> None:
        self.answer = answer

    async def result(self) -> Refusal | str:
        return await self.answer

    def when_refused(self, then: Callable[[], None]) -> None:
        """Call it if the replica refuses the request."""

        def look(answer: asyncio.Future[Refusal | str]) -> None:
            if not answer.cancelled() and answer.exception() is None and isinstance(answer.result(), Refusal):
                then()

        self.answer.add_done_callback(look)

    def cancel(self) -> None:
        self.answer.cancel()
