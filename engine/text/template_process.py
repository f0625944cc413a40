"""The process in which chat templates are rendered, with limits on time and memory.

A template is a program that comes with a checkpoint, and what it does depends on a client's
messages. Rendered in the engine's process it would hold the interpreter's lock, and nothing there
could end it: a loop makes no calls, and a single expression ('a' * 10**12) takes all memory. A
process can be limited and killed, and its work delays no other thread.

Over a socket pair the parent sends the template, then messages, variables and a share of time
(pickled); the child answers each with a letter and a text. A frame is its length (8 bytes,
big-endian) and as many bytes.

A conversation may be given a short share of processor time at first. It is then given up by an
exception between two of Python's instructions; what does not come to its next instruction within
twice the share is ended by a signal, and with it this process.
"""

import functools
import pickle
import resource
import signal
import socket
import struct
from types import FrameType
from typing import Any

import jinja2

from engine.text.chat_template import make_environment, mark_raw

MAX_CPU_SECONDS = 3  # of processor time: a busy machine does not use it up
MAX_MEMORY_BYTES = 2 << 30
MAX_RENDERED_BYTES = 64 << 20
RENDERED, REFUSED, FAILED, UNFINISHED = b"r", b"x", b"f", b"u"
_LENGTH = struct.Struct(">Q")


class _ShareUsed(BaseException):
    """No Exception: neither the template nor Jinja may take it for one of the template's."""


def main() -> None:
    """The child: answers until the parent closes the connection."""
    signal.signal(signal.SIGPROF, _give_up)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with socket.socket(fileno=0) as parent:
        try:
            source = receive(parent).decode()
            while True:
                messages, variables, seconds = pickle.loads(receive(parent))
                send(parent, _answer(source, messages, variables, seconds))
        except (EOFError, ConnectionError):
            pass  # the parent has ended, or has closed the connection


def _answer(source: str, messages: list[dict[str, Any]], variables: dict[str, Any], seconds: float | None) -> bytes:
    """`seconds`: the share of processor time; None: as much as there is at all."""
    _allow_more_time()
    try:
        return _answer_within(_compile(source), messages, variables, seconds)
    except _ShareUsed:
        return UNFINISHED
    except MemoryError:
        return FAILED + b"it takes more than %d bytes of memory" % MAX_MEMORY_BYTES
    except jinja2.TemplateError as error:
        return REFUSED + str(error).encode(errors="replace")
    except Exception as error:  # any error of a template with unexpected values
        return FAILED + f"{type(error).__name__}: {error}".encode(errors="replace")


def _answer_within(
    template: jinja2.Template, messages: list[dict[str, Any]], variables: dict[str, Any], seconds: float | None
) -> bytes:
    """Raises _ShareUsed."""
    _set_share(seconds)
    try:
        mark_raw(messages)
        pieces, num_bytes = [RENDERED], 0
        for piece in template.generate(messages=messages, **variables):
            pieces.append(piece.encode(errors="surrogatepass"))
            num_bytes += len(pieces[-1])
            if num_bytes > MAX_RENDERED_BYTES:
                return FAILED + b"it makes more than %d bytes of these messages" % MAX_RENDERED_BYTES
        return b"".join(pieces)
    finally:
        _set_share(None)


def _set_share(seconds: float | None) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds or 0)
    signal.setitimer(signal.ITIMER_VIRTUAL, 2 * seconds if seconds else 0)


def _give_up(number: int, frame: FrameType | None) -> None:
    raise _ShareUsed


@functools.cache
def _compile(source: str) -> jinja2.Template:
    return make_environment().from_string(source)


def _allow_more_time() -> None:
    """The kernel kills this process (SIGXCPU) after that much more processor time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + 1 + MAX_CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def send(connection: socket.socket, payload: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(payload)))
    connection.sendall(payload)


def receive(connection: socket.socket) -> bytearray:
    """Raises EOFError once the other end is closed."""
    (length,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
    return _read(connection, length)


def _read(connection: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    rest = memoryview(data)
    while rest:
        received = connection.recv_into(rest)
        if not received:
            raise EOFError("the other end was closed")
        rest = rest[received:]
    return data


if __name__ == "__main__":
    main()
