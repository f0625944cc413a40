"""The line between the driver and a worker's process, and the words on it; it lasts as long as the
process.

A worker says an empty word several times a second: it is alive. The driver says `Abort`, or asks
for a `Look` at another process of the worker's machine, which the driver cannot see from its own;
`Stopped` is the answer, silence is the other one.
"""

import os
import select
import threading
from collections.abc import Callable

import msgspec

from cluster.workers.channel import ChannelError, Connection
from cluster.workers.process_state import is_stopped

WORD_SECONDS = 0.2  # between two words of a worker
ALIVE = b""


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Get out of whatever collective of that epoch you are in."""

    epoch: int


class Look(msgspec.Struct, frozen=True, tag=True):
    """Say so if a signal has stopped this process."""

    pid: int
    start_time: int


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """A signal has stopped this process."""

    pid: int
    start_time: int


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Abort | Look | Stopped)


def encode_word(word: Abort | Look | Stopped) -> bytes:
    return _encoder.encode(word)


def decode_word(frame: bytearray) -> Abort | Look | Stopped:
    """Raises ChannelError."""
    try:
        word: Abort | Look | Stopped = _decoder.decode(frame)
    except msgspec.DecodeError as error:
        raise ChannelError(f"not a word: {error}") from None
    return word


def hold_line(line: Connection, abort: Callable[[int], None]) -> None:
    """The worker's end, held by a thread of its own, which calls `abort`; the process ends with the
    line.
    """
    threading.Thread(target=_hold, args=(line, abort), name="line", daemon=True).start()


def _hold(line: Connection, abort: Callable[[int], None]) -> None:
    try:
        while True:
            line.post(ALIVE)
            if select.select([line], [], [], WORD_SECONDS)[0]:
                for frame in line.receive():
                    match decode_word(frame):
                        case Abort(epoch=epoch):
                            abort(epoch)
                        case Look(pid=pid, start_time=start_time) if is_stopped(pid, start_time):
                            line.post(encode_word(Stopped(pid, start_time)))
    except BaseException:
        os._exit(1)
