"""Renders chat templates in separate processes, with limits on time and memory.

A template is a program that comes with a checkpoint, and what it does depends on a client's
messages. Rendered in the engine's process it would hold the interpreter's lock, and nothing there
could end it: a loop makes no calls, and a single expression ('a' * 10**12) takes all memory. A
process can be limited and killed, and its work delays no other thread.

Over a socket pair the parent sends the template, then messages and variables (pickled); the child
answers each with a letter and a text. A frame is its length (8 bytes, big-endian) and as many
bytes.
"""

import functools
import os
import pickle
import resource
import signal
import socket
import struct
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from engine.errors import InputProcessingError, InvalidRequest
from engine.text.chat_template import make_environment

ROOT = str(Path(__file__).resolve().parents[2])
MAX_CPU_SECONDS = 3  # of processor time: a busy machine does not use it up
MAX_MEMORY_BYTES = 2 << 30
MAX_RENDERED_BYTES = 64 << 20
ANSWER_SECONDS = 60.0  # after which a process that neither answers nor computes (for example a stopped one) is killed
RENDERED, REFUSED, FAILED = b"r", b"x", b"f"
_LENGTH = struct.Struct(">Q")


class TemplateRenderer:
    """A chat template, rendered by one process per concurrent call. Thread-safe."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._idle: list[_TemplateProcess] = []
        weakref.finalize(self, _end_all, self._idle)

    def start(self) -> None:
        """Start a process for the first conversation."""
        self._idle.append(_TemplateProcess(self._source))

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """Raises InvalidRequest with the template's own complaint, InputProcessingError if it fails
        or takes too much.
        """
        try:
            process = self._idle.pop()
        except IndexError:
            process = _TemplateProcess(self._source)
        try:
            text = process.render(messages, variables)
        except (InvalidRequest, InputProcessingError):
            self._idle.append(process)
            raise
        except (EOFError, OSError) as error:
            process.end()
            if process.is_new or process.is_out_of_time:
                raise InputProcessingError(process.why_it_ended(error)) from None
            return self.render(messages, variables)  # it was killed, perhaps long ago
        except BaseException:  # for example Ctrl-C: its answer may still arrive, and the next call must not get it
            process.end()
            raise
        self._idle.append(process)
        return text


class _TemplateProcess:
    """The parent's end. The process is unusable after an exception that the caller did not
    cause.
    """

    def __init__(self, source: str) -> None:
        self.is_new = True
        self._line, theirs = socket.socketpair()
        self._line.settimeout(ANSWER_SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                # -S: without site and its hooks; installed packages are found by our own path, and
                # these (of an editable installation perhaps by a hook alone) by their folder.
                [sys.executable, "-S", "-P", "-m", "engine.text.template_process"],
                env=os.environ | {"PYTHONPATH": os.pathsep.join([ROOT, *filter(None, sys.path)])},
                stdin=theirs.fileno(),
                start_new_session=True,  # Ctrl-C in a terminal must reach only the parent
            )
        _send(self._line, source.encode())

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        _send(self._line, pickle.dumps((list(messages), dict(variables)), pickle.HIGHEST_PROTOCOL))
        answer = _receive(self._line)
        self.is_new = False
        kind, text = answer[:1], answer[1:].decode(errors="surrogatepass")
        if kind == REFUSED:
            raise InvalidRequest(f"the chat template refuses these messages: {text}", param="messages")
        if kind == FAILED:
            raise InputProcessingError(f"the chat template failed: {text}")
        return text

    def end(self) -> None:
        self._process.kill()
        self._line.close()
        self._process.wait()

    @property
    def is_out_of_time(self) -> bool:
        return self._process.returncode == -signal.SIGXCPU

    def why_it_ended(self, error: BaseException) -> str:
        if self.is_out_of_time:
            return f"the chat template was ended after {MAX_CPU_SECONDS} s of computing"
        return f"the chat template's process was lost: {type(error).__name__}: {error}"


def _end_all(processes: list[_TemplateProcess]) -> None:
    for process in processes:
        process.end()


def main() -> None:
    """The child: answers until the parent closes the connection."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with socket.socket(fileno=0) as line:
        try:
            source = _receive(line).decode()
            while True:
                messages, variables = pickle.loads(_receive(line))
                _send(line, _answer(source, messages, variables))
        except (EOFError, ConnectionError):
            pass  # the parent has ended, or has closed the connection


def _answer(source: str, messages: list[dict[str, Any]], variables: dict[str, Any]) -> bytes:
    _allow_more_time()
    try:
        pieces, num_bytes = [RENDERED], 0
        for piece in _compile(source).generate(messages=messages, **variables):
            pieces.append(piece.encode(errors="surrogatepass"))
            num_bytes += len(pieces[-1])
            if num_bytes > MAX_RENDERED_BYTES:
                return FAILED + b"it makes more than %d bytes of these messages" % MAX_RENDERED_BYTES
        return b"".join(pieces)
    except MemoryError:
        return FAILED + b"it takes more than %d bytes of memory" % MAX_MEMORY_BYTES
    except jinja2.TemplateError as error:
        return REFUSED + str(error).encode(errors="replace")
    except Exception as error:  # any error of a template with unexpected values
        return FAILED + f"{type(error).__name__}: {error}".encode(errors="replace")


@functools.cache
def _compile(source: str) -> jinja2.Template:
    return make_environment().from_string(source)


def _allow_more_time() -> None:
    """The kernel kills this process (SIGXCPU) after that much more processor time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + 1 + MAX_CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _send(line: socket.socket, payload: bytes) -> None:
    line.sendall(_LENGTH.pack(len(payload)))
    line.sendall(payload)


def _receive(line: socket.socket) -> bytearray:
    """Raises EOFError once the other end is closed."""
    (length,) = _LENGTH.unpack(_read(line, _LENGTH.size))
    return _read(line, length)


def _read(line: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    rest = memoryview(data)
    while rest:
        received = line.recv_into(rest)
        if not received:
            raise EOFError("the other end was closed")
        rest = rest[received:]
    return data


if __name__ == "__main__":
    main()
