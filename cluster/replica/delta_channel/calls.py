"""Calls over the delta channel: a gateway sends a request to the engine replica at the other end of
a connection. A call through Serve's router does the same for ten times the processor time.

A frame to a replica holds the call's number, the request, and what the gateway remembers its
prompt's beginnings by, which the replica tells its other gateways. Without a request, the gateway
does not want the rest. The answer, `messages.Answer`, comes behind the request's last delta.
Requests are pickled, because they hold JSON of any kind. What reads them makes plain values and
instances of CLASSES, so that no frame can have code run.
"""

import asyncio
import io
import pickle
from typing import Any

from cluster.replica.delta_channel.messages import write_frame
from cluster.replica.refusals.lost import EngineLost
from cluster.replica.refusals.refusal import Refusal
from cluster.sockets import MAX_FRAME_BYTES
from engine.errors import InvalidRequest
from engine.pooling import Pooling
from engine.request import Adapter, ChatPrompt, Request, Resume, Share
from engine.sampling_params import SamplingParams
from engine.structured_outputs import StructuredOutputs

MAX_UNSENT_BYTES = 64 << 20  # of requests to a replica that reads nothing

CLASSES = {
    (kind.__module__, kind.__qualname__): kind
    for kind in (Request, Resume, Share, Adapter, Pooling, ChatPrompt, SamplingParams, StructuredOutputs)
}


class OpenCalls:
    """The gateway's end of one connection."""

    def __init__(self, connection: str, writer: asyncio.StreamWriter) -> None:
        """`connection`: its name."""
        self._connection = connection
        self._writer = writer
        self.num_begun = 0
        self._num_reported = 0
        self._num_gateways = 1
        self._open: dict[int, asyncio.Future[Refusal | str]] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_full(self) -> bool:
        """Whether as much waits to be sent as may: the replica reads nothing."""
        return self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES

    @property
    def num_unreported(self) -> int:
        """Requests that the replica has probably got since it told how many it has: those of this
        gateway, and as many of each other one, which choose by the same report. Without them, all
        would go on filling the replica that was the least busy.
        """
        return min(len(self._open), self.num_begun - self._num_reported) * self._num_gateways

    def reported(self, num_gateways: int) -> None:
        """The replica has told how many requests it has, and how many gateways."""
        self._num_reported = self.num_begun
        self._num_gateways = num_gateways

    def begin(self, request: Request, beginnings: bytes = b"") -> "ChannelCall | None":
        """Send the request; None if it is larger than a frame. `beginnings`: see
        `cluster.gateway.engines.prefixes`. Raises InvalidRequest for one that holds what no replica
        would read, as a date that was passed by a handle.
        """
        number = self.num_begun
        payload = _pickled((number, request, beginnings))
        if len(payload) > MAX_FRAME_BYTES:
            return None
        self.num_begun += 1
        write_frame(self._writer, payload)
        answer = self._open[number] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: self._end(number, answer))
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

    def _end(self, number: int, answer: asyncio.Future[Refusal | str]) -> None:
        del self._open[number]
        if answer.cancelled():
            write_frame(self._writer, pickle.dumps((number, None, b""), pickle.HIGHEST_PROTOCOL))
        else:
            answer.exception()  # has been looked at: nobody may be waiting any more


class ChannelCall:
    """See `EngineCall`."""

    def __init__(self, answer: asyncio.Future[Refusal | str]) -> None:
        self.answer = answer

    async def result(self) -> Refusal | str:
        return await self.answer

    def cancel(self) -> None:
        self.answer.cancel()


def _pickled(call: tuple[int, Request, bytes]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(call)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        kind = value if isinstance(value, type) else type(value)
        if (kind.__module__, kind.__qualname__) not in CLASSES:
            raise InvalidRequest(f"the request holds a {kind.__module__}.{kind.__qualname__}, which JSON does not have")
        return NotImplemented


def read_call(payload: bytes) -> tuple[int, Request | None, bytes]:
    """Raises pickle.UnpicklingError for anything but a call."""
    try:
        number, request, beginnings = _Unpickler(io.BytesIO(payload)).load()
    except (ValueError, TypeError, EOFError, AttributeError, IndexError, KeyError) as error:
        raise pickle.UnpicklingError(f"no call: {error}") from None
    if type(number) is not int or not isinstance(request, Request | None) or type(beginnings) is not bytes:
        kinds = ", ".join(type(each).__name__ for each in (number, request, beginnings))
        raise pickle.UnpicklingError(f"no call: {kinds}")
    return number, request, beginnings


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = CLASSES.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"a call holds a {module}.{name}")
        return found
