"""The line: the connection between the driver and a worker's process, which lasts as long as the
process, and its messages.

A worker sends an empty message several times a second: it is alive. The driver sends `Abort`, or
asks by `Look` about another process of the worker's machine, which it cannot see from its own. The
answer is `Stopped`, or nothing if the process is not stopped.
"""

import os
import threading
from collections.abc import Callable

import msgspec

from cluster.sockets.connection import ChannelError, Connection
from cluster.workers.processes.process_state import is_stopped

WORD_SECONDS = 0.2  # between a worker's signs of life
ALIVE = b""


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Leave any collective of that epoch."""

    epoch: int


class Look(msgspec.Struct, frozen=True, tag=True):
    """Answer if a signal has stopped this process."""

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
    """The worker's end, in a thread of its own, which calls `abort`; the process exits when the
    line ends.
    """
    threading.Thread(target=_hold, args=(line, abort), name="line", daemon=True).start()


def _hold(line: Connection, abort: Callable[[int], None]) -> None:
    try:
        while True:
            line.post(ALIVE)
            if line.wait_for_bytes(WORD_SECONDS):
                _hear(line, abort)
    except BaseException:
        os._exit(1)


def _hear(line: Connection, abort: Callable[[int], None]) -> None:
    for frame in line.receive():
        match decode_word(frame):
            case Abort(epoch=epoch):
                abort(epoch)
            case Look(pid=pid, start_time=start_time) if is_stopped(pid, start_time):
                line.post(encode_word(Stopped(pid, start_time)))
